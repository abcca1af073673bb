"""Learning curves."""
