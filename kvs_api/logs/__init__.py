"""Event logs in Redis, and their older part in files."""
