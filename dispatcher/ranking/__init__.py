"""The page Ranking: models of a test run with intervals and shared ranks."""
