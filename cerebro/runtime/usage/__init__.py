"""A worker's resource usage: processor, memory, GPUs, and the disk of its shards.

Never imports torch, because the agent must stay small, and a hanging driver must not block the training
process. Values that cannot be measured are `None`, not 0.
"""
