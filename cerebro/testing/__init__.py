"""Contract suites for authors of techniques and search procedures. No test framework is needed.

Example:
    >>> from cerebro.testing import check_procedure, check_technique
    >>> from cerebro.techniques import Single
    >>> check_technique(Single())  # doctest: +SKIP
"""

from cerebro.techniques.conformance import check as check_technique
from cerebro.testing.procedures import check_procedure

__all__ = ["check_procedure", "check_technique"]
