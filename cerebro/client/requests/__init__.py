"""Arguments of a notebook user's calls, checked and turned into requests."""
