"""The planner: searches for the best schedule within a time limit. The controller runs it in its planner process."""
