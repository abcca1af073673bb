"""The child process that runs user code: task loop, messages to the agent, sandbox."""
