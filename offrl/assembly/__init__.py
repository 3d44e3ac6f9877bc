"""Puts together what a config describes."""
