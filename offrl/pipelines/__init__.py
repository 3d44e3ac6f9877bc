"""Trainings with a user's own algorithm, model, agents and environment, combined by a file."""
