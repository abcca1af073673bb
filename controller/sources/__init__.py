"""Sources of tasks: gangs, trials, replicas, verifications, searches.

One module per kind of task. Pure.
"""
