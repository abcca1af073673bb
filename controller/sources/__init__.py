"""Task sources: replicas, searches, trials, verifications, training, gangs, ETL and evaluation.

One module per kind of task; `task_source` has their protocol, `controller.decisions.assignment` their order. Pure.
"""
