"""Priority scores of models by their losses. Pure; independent of workers and partitions."""

from cerebro.scheduling.convergence.curves import Forecast, Sample, forecast
from cerebro.scheduling.convergence.progress import UNSEEN, Progress, Quantum
from cerebro.scheduling.convergence.rules import Rule, hermes, promising, slaq

__all__ = [
    "UNSEEN",
    "Forecast",
    "Progress",
    "Quantum",
    "Rule",
    "Sample",
    "forecast",
    "hermes",
    "promising",
    "slaq",
]
