"""Rankings of tested models. The rows cannot separate models that share a rank.

`results` has the types that pages, notebooks and the command line show; `statistics` has the bootstrap and the tests;
`row_values` reads the values per row that a test run stored. NumPy and Arrow are imported by `statistics` and
`row_values` only, so the web page's process, which imports `results`, stays small.
"""
