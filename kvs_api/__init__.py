"""The key-value store service: typed REST over Redis. The only holder of Redis credentials."""
