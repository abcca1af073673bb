"""Preparation of ETL runs: metadata is read, sorted and cut into partitions."""
