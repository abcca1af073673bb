"""What the log says of a run, in the shapes that pages, notebooks and reports show: rows, curves, importance.

Pure: state in, plain values out. Knows nothing of figures (`cerebro.figures`) and of HTTP.
"""
