"""What happened to an experiment, and who asked for it."""
