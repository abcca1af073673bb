"""The tab Code: source of each spec, request of each run, and files of the code archive."""
