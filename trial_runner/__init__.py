"""Runs one trial at a time, whole, on one worker: filled by a later capability."""
