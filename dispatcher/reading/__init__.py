"""Reading the store: what pages are made of, kept while logs grow."""
