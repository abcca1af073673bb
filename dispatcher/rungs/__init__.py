"""The tab Search: rungs of a fit run's search, with the models on each."""
