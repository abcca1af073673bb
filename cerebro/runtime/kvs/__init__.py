"""The client of kvs_api, for every other service."""
