"""Files that are complete or absent, opened safely."""
