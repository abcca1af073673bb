"""Contract suites for authors of extensions. No test framework is needed.

Example:
    >>> from cerebro.testing import check_procedure, check_technique
    >>> from cerebro.techniques import Single
    >>> check_technique(Single())  # doctest: +SKIP
"""

from cerebro.techniques.conformance import check as check_technique
from cerebro.testing.exporters import check_exporter
from cerebro.testing.metrics import check_metric
from cerebro.testing.procedures import check_procedure
from cerebro.testing.samplers import check_sampler
from cerebro.testing.stores import check_store

__all__ = [
    "check_exporter",
    "check_metric",
    "check_procedure",
    "check_sampler",
    "check_store",
    "check_technique",
]
