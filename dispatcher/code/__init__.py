"""The code that an experiment ran."""
