"""The state of one model: training config, completed sub-epochs, checkpoints."""
