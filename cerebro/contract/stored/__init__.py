"""Records beside the event logs: machine health, history, registered models, log segments."""
