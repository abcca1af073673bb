"""A worker: the agent and its child process, and what they do with user code: preprocess and train."""
