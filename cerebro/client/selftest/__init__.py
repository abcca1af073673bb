"""The platform tried out on itself: ``cerebro selftest``, which `helm test` runs as well.

`trial` makes a small data set on the shared volume, preprocesses it, trains a few tiny models and checks what came of
it; `specs` is the user code of that. Nothing is downloaded, and nothing is asked of the cluster that a user could not.
"""
