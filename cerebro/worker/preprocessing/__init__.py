"""Rows of metadata become tensors: user code called row by row.

`etl_worker` and the client's dry run in a notebook both use this package. It processes one shard or one `fit` pass in
the calling process. Processes, resumption and the limit of failed rows are in `etl_worker`.
"""
