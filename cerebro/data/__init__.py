"""Rows of tensors on disk: Arrow shards with manifests, written by ETL and read by the loader.

`trees.py`, `fields.py` and `shards.py` turn rows of user code into Arrow files, `partitions.py` and `manifests.py`
record which shards are complete, and `mapped.py` and `loader.py` turn them into batches. `locators.py`,
`table_files.py`, `table_stream.py` and `objects/` read the user's metadata and objects. `durable.py` writes files
atomically. Only `loader` imports torch; importing the package imports neither NumPy nor Arrow.
"""
