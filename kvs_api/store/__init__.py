"""The store over Redis: every rule about shared state, in Lua scripts and their callers. Views are in `kvs_api.api`."""
