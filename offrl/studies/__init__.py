"""Studies: many trainings, for a grid of configs, data, settings and seeds (``offrl study``)."""
