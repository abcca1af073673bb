"""Background duties of a worker: metrics, log sizes, old checkpoints, free space on its volumes.

The agent runs `housekeeping` in its own thread, and calls the other modules before or after an attempt.
"""
