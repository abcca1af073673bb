"""The client of kvs_api, for every other service, the CLI and the notebook client.

`client.KvsClient` is the entry; the `*_calls` modules are its parts, and `transport` sends requests.
"""
