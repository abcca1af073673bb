"""Priority scores of models from their losses, for the schedulers `promising`, `hermes` and `slaq`.

Pure; independent of workers and partitions. `controller.projections.priority_scores` collects losses and calls a rule.
"""

from cerebro.scheduling.convergence.curves import Sample, forecast
from cerebro.scheduling.convergence.progress import UNSEEN, Progress, Quantum
from cerebro.scheduling.convergence.rules import Rule, hermes, promising, slaq

__all__ = [
    "UNSEEN",
    "Progress",
    "Quantum",
    "Rule",
    "Sample",
    "forecast",
    "hermes",
    "promising",
    "slaq",
]
