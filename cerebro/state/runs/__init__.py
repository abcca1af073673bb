"""The state of one run: its models, its search, its place among concurrent runs."""
