"""Background duties of a worker: metrics, log sizes, free space on its volumes."""
