"""Training one sub-epoch: seeds, model state, checkpoints, the user's data loader and metrics.

`model_hopper` and `trial_runner` call it in a worker's child; `cerebro replay` and dry runs call the same code on the
user's machine, so results agree bit for bit. `checkpoints/` has the files, `ranks/` sub-epochs on several processes.
Nothing here talks to the agent or the store.
"""
