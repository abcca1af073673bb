"""Turn a worker's metadata rows into Arrow shards of tensors.

The package executes `etl` tasks (`handler.py`) and `fitting` tasks (`fit_handler.py`) in a worker's child process.
`partition.py` resumes or completes one partition: `shard_work.py` plans its shards, `cores.py` makes them in several
processes, and `shard_counts.py` counts rows and stops the job when too many rows fail. `process_count.py` and
`watch.py` adapt the number of processes to memory and processor use. The package has no settings and does not call the
store.
"""

KINDS = ("etl",)
"""Task kinds of `HANDLER`."""

HANDLER = "etl_worker.handler"
"""Module that the child process imports; this package stays cheap to import for the agent."""

OTHER_HANDLERS = {"fitting": "etl_worker.fit_handler"}
"""Handler modules of further task kinds."""
