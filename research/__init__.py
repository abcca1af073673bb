"""Simulations, comparisons and paper scenarios of the schedulers; not in the wheel."""
