"""The list of experiments: search, filter, order, pages, and commands on several experiments.

`catalogue` caches one row per experiment, `view` computes rows and selects them, `page` has the routes.
"""
