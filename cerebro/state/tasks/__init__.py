"""The state of one task, and the effects of its events on task, model and run."""
