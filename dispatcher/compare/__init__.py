"""The page that compares models of any experiments; the address has the selection."""
