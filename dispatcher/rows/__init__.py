"""The page Rows: rows of a test run that models get wrong or disagree on, with fields and thumbnails."""
