"""What a worker uses of its machine: processor, memory, GPUs, the disk below its shards.

Never imports torch: the agent stays small, and a driver that hangs must not be asked by the process that trains. What
cannot be measured is `None`, which is not 0.
"""
