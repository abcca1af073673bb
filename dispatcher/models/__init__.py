"""The tab Models: table of a run's models, comparison, and a page per model.

`query` implements the filter language.
"""
