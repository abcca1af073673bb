"""Scheduling of models on workers: problems, policies, plans, exact solvers and a validator of schedules.

Pure computation. The controller dispatches with `policies` and plans with `planning`, in its planner process. Only the
exact solvers need more than the standard library. It has no knowledge of experiments, tasks or the store.
"""
