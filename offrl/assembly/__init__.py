"""Assembles the parts of a training from its config."""
