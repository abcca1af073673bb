"""The form that creates experiments."""
