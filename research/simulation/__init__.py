"""The controller's own core in virtual time: for studies of schedules, property-based tests and crash sweeps."""
