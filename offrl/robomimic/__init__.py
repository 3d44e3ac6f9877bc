"""robomimic's names of weights, config keys, parts of checkpoints and methods of algorithms."""
