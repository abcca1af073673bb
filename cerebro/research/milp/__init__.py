"""The mixed-integer programmes of the papers, as they are written: to be compared with what runs live.

Both need Gurobi and a licence, and take the problems of their paper only. What the live planner asks is
`cerebro.scheduling.exact`.
"""

from __future__ import annotations

from collections.abc import Callable

from cerebro.research.milp import hopping, thesis
from cerebro.scheduling.exact import ExactResult

FORMS: dict[str, Callable[..., ExactResult]] = {"thesis": thesis.solve, "hopping": hopping.solve}
"""By name: the thesis's equations 4.1 to 4.14, and equation 2 of the Model Hopper paper."""
