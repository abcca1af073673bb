"""The list of experiments: search, filter, order, pages, and commands on several experiments."""
