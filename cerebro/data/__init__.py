"""Rows of tensors on disk: Arrow shards with manifests, written by ETL and read by the loader.

Only `loader` imports torch; everything else here is NumPy and Arrow. Importing this package imports none of
them.
"""
