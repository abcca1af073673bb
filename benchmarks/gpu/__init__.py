"""Cerebro on a machine with one GPU, measured and checked in at most nine minutes.

``python -m benchmarks.gpu`` runs the sections one after another, each in a separate process.
"""
