"""Trained models: `registry` registers and loads them, `warm_clone` checks a parent's weights for a clone."""
