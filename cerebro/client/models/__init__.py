"""Trained models: registered, loaded, used as the start of a warm clone."""
