"""Sub-epochs trained by several processes with a parallel plan.

`grouped` adapts a model and the user's loop to a rank group; the other modules gather and cut tensors, share rows, and
repeat sub-epochs for replays. `cerebro.techniques` has the techniques; the agent starts the processes.
"""
