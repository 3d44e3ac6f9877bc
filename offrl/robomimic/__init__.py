"""robomimic's names of weights, config keys and parts of checkpoints."""
