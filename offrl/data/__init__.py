"""Demonstrations: HDF5 files in robomimic's layout, windows over them, statistics, recording."""
