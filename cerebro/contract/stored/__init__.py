"""Stored records other than event logs: machine health, history, registered models, log segments."""
