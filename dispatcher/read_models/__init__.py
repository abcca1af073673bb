"""Cached data of the store, for all pages.

`reader` follows event logs and live points, and shares them between requests. `read_model` is the folded state of
one experiment with derived data: `model_table`, `live_series`. `circuit_breaker` limits calls while the store is
away, `cached_answer` caches lists, `background` reads long logs without blocking a request. `store` is the interface of
kvs_api.
"""
