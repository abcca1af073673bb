"""Suggestions of searches, computed in a separate process: TPE, Gaussian processes, CMA-ES."""
