"""The tab Data: progress of preprocessing per split, partition and worker, and rows that failed. Read-only."""
