"""A worker: the agent, and its child processes that preprocess and train with user code."""
