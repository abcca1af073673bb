"""Background duties of a worker: metrics, log sizes, old checkpoints, free space on its volumes.

The agent starts them in their own threads (`housekeeping`) or calls them after an attempt. No task waits for them.
"""
