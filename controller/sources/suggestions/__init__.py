"""Draws the values that searches ask for, beside the loop: TPE, Gaussian processes, CMA-ES."""
