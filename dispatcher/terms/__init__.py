"""Forms by which models are added, cloned, changed, extended and given a priority: the difference is shown first."""
