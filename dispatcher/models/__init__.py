"""The table of a run's models, and one model's page."""
