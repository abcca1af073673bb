"""Choice of trials, and the known times and memory of parallel plans. Pure."""
