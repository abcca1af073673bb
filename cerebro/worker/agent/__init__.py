"""A worker's agent: registers, runs the inbox's tasks in child processes under leases, and commits results.

The agent makes no scheduling decisions and never loads user code. Handlers (`etl_worker`, `model_hopper` and
others) execute tasks; only the child imports them.
"""
