"""Edits of demonstrations: new files that are made of those of other files."""
