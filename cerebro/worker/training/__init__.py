"""Training one sub-epoch: seeds, model state, checkpoints, what user code is given. The same code hops and replays."""
