"""The tab Checkpoints: list a run's checkpoints, download them, and report missing files. Deletes nothing."""
