"""Sub-epochs trained by several processes with a parallel plan."""
