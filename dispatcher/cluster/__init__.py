"""Workers, queue and volumes."""
