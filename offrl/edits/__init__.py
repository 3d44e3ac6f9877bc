"""Edits of demonstrations, which write new files."""
