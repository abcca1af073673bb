"""Run the controller's core in virtual time, for scheduling studies, property-based tests and crash sweeps."""
