"""Derived data of logs: TensorBoard files, timings, priority scores, history."""
