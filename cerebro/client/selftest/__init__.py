"""Self-test of a cluster: `cerebro selftest`, which `helm test` runs.

`trial.py` creates a small data set on the shared volume, preprocesses it, trains a few tiny models and checks the
result. `specs.py` has the user code. It uses only the public API and downloads nothing.
"""
