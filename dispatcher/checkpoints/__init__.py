"""The checkpoints of an experiment, and their files."""
