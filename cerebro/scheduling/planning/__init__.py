"""The planner: searches for the best schedule within a time limit."""
