"""A worker: the agent, and its child processes that preprocess and train with user code.

`agent/` holds leases and talks to the store. `child/` runs the handlers (`etl_worker`, `model_hopper`, `trial_runner`,
`searches/`) in separate processes without access to the store. `protocol/` connects both. `preprocessing/` and
`training/` hold the code that a notebook's dry run shares; `health/` finds causes of failures; `upkeep/` has background
duties.
"""
