"""Checkpoints: written, verified, shared among ranks, resumed from between two batches."""
