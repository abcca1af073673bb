"""Rankings of tested models, and rows that models get wrong or disagree on.

`results` and `rows` have the types that pages, notebooks and the command line show. `row_values` reads the values per
row that a test run stored. `models` ranks models by them, with the bootstrap and tests of `statistics`; `row_tables`
selects rows. The web page's process imports `results` and `rows` only, which load neither NumPy nor Arrow.
"""
