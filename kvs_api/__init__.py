"""The key-value store service: a typed REST API over Redis, for every other part of Cerebro.

It alone has Redis credentials. It decides only whether a write is still valid; the controller decides who trains what.
"""
