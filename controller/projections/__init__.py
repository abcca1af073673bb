"""What is derived from logs: TensorBoard files, timings, priority scores, history."""
