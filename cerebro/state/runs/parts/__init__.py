"""Parts of a run's state, one subject each."""
