"""The store over Redis: `Store` and its base classes, and the Lua script with every rule about shared state.

HTTP views are in `kvs_api.api`, logs in files in `kvs_api.logs`, tokens and quotas in `kvs_api.accounts`.
"""
