"""Messages between the agent and its child processes, and the channel that carries them."""
