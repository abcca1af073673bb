"""Examples in docstrings of the Python API run."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "cerebro.spec",
        "cerebro.client.limits",
        "cerebro.client.requests.run_requests",
        "cerebro.client.requests.techniques",
        "cerebro.client.search.distributions",
        "cerebro.client.search.requests",
        "cerebro.client.search.space",
    ],
)
def test_the_examples_in_docstrings_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
