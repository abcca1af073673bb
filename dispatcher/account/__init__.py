"""The page Account: the user's rights, quotas, and tokens for programs. Only in users mode."""
