"""Rows of tensors on disk: Arrow shards with manifests, written by ETL and read by the loader.

`trees.py`, `fields.py` and `shards.py` turn rows of user code into Arrow files, `partitions.py` and `manifests.py`
record which shards are complete, and `mapped.py` and `loader.py` turn them into batches. `tables/` and `objects/` read
the user's metadata and objects; `files/` writes files atomically. Only `loader` imports torch; importing the package
imports neither NumPy nor Arrow. Which worker holds which partition is not decided here.
"""
