"""Trainings of a user's own algorithm, model, agents and environment, which a file combines."""
