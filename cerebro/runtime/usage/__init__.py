"""A worker's resource usage: processor, memory, GPUs, and the disk of its shards.

The agent measures with `meter` and registers cores and GPUs; child processes read their own memory. Never imports
torch, because the agent must stay small, and a hanging driver must not block the training process. Values that cannot
be measured are `None`, not 0.
"""
