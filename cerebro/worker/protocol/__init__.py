"""Messages between the agent and its child processes, between workers of a gang, and the channel that carries them.

`messages` has the classes and `channel` the transport over a socket. Requests to the store are in
`cerebro.runtime.kvs`.
"""
