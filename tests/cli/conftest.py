"""Fake clusters for the command line, as in tests/local."""

from tests.local.conftest import make_cluster

__all__ = ["make_cluster"]
