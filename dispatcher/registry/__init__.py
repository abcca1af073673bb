"""The page of registered models, with their versions and aliases. Read-only."""
