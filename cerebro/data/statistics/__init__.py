"""Statistics of columns and hashes of rows, which merge over shards and partitions.

`ShardWriter` and the ETL task make them, `cerebro.figures.data` compares them. The package does not know splits,
warnings or pages.
"""
