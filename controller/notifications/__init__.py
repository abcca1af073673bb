"""Notifications: a child process reads the logs and sends messages, so that no slow receiver delays a decision.

`supervision` runs the process while this controller leads and targets exist. `sender` is its loop, `notices` turns
events into messages, `delivery` sends them with the library `apprise`.
"""
