"""How an ETL run is prepared: metadata is read, sorted and cut into partitions."""
