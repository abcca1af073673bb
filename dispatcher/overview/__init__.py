"""An experiment's first tab, and the report of a run."""
