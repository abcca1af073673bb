"""Where the models of a search stand: a tab of fits that search."""
