"""Causes of failures on a worker: faulty devices, hangs, failed ranks, failure rules."""
