"""Policies at environments."""
