"""Check objectives and constraints of `run_fit`, and parse constraints such as ``"latency_ms <= 20"``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.runs import MEASURES, Constraint, Mode
from cerebro.contract.search import CMA, SearchRequest
from cerebro.errors import MetricError, SearchError

_CONSTRAINT = re.compile(r"\s*([^\s<>=!]+)\s*([<>=!]+)\s*(.*?)\s*")
_EXAMPLE = "such as 'latency_ms <= 20'"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How a fit compares models.

    Attributes:
        metric, mode: the first objective.
        objectives: all objectives; empty if the metric is the only one.
        constraints: constraints on metrics and measures.
    """

    metric: str
    mode: Mode
    objectives: Mapping[str, Mode]
    constraints: tuple[Constraint, ...]

    @property
    def metrics(self) -> list[tuple[str, str]]:
        """(metric, its place in the arguments) of each metric that the spec must return."""
        names = {self.metric: "in `objectives`" if self.objectives else "as `metric`"}
        names |= dict.fromkeys(self.objectives, "in `objectives`")
        named = {each.name: f"in the constraint {str(each)!r}" for each in self.constraints}
        return [(name, place) for name, place in {**named, **names}.items() if name not in MEASURES]

    @property
    def measures(self) -> set[str]:
        """Measures of the platform in objectives and constraints."""
        return MEASURES.keys() & {*self.objectives, *(each.name for each in self.constraints)}


def comparison(metric: object, mode: object, objectives: object, constraints: object) -> Comparison:
    """Check the arguments of `run_fit` that rank models.

    Raises:
        MetricError: an argument is missing or invalid.
    """
    parsed = _constraints(constraints)
    if objectives is None:
        if mode not in ("min", "max"):
            raise MetricError(
                f"mode is {mode!r}: set mode='max' if a larger value is better, or mode='min' if a smaller one is"
            )
        if not metric or not isinstance(metric, str):
            raise MetricError("no metric: name the metric that ranks models, such as metric='accuracy'")
        _check_first(metric, [])
        return Comparison(metric=metric, mode=_mode(metric, mode), objectives={}, constraints=parsed)
    if metric is not None or mode is not None:
        raise MetricError("objectives replace metric and mode: give either the objectives or one metric")
    if not isinstance(objectives, Mapping) or not objectives:
        raise MetricError(
            f"objectives are {objectives!r}: give a dict of names and directions, such as "
            "{'accuracy': 'max', 'train_s': 'min'}"
        )
    modes = {_name(name): _mode(name, each) for name, each in objectives.items()}
    first, *rest = modes
    _check_first(first, rest)
    return Comparison(
        metric=first, mode=modes[first], objectives=modes if len(modes) > 1 else {}, constraints=parsed
    )


def check_search(found: Comparison, request: SearchRequest | None) -> None:
    """Raise `SearchError` for a sampler that suggests values for one objective only."""
    if request is None or not (len(found.objectives) > 1 or found.constraints):
        return
    if isinstance(request.sampler, CMA):
        raise SearchError(
            "the sampler CMA() uses one objective and no constraints: choose TPE(), GP() or RandomSampler(), or give "
            "one metric"
        )


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise MetricError(
            f"an objective is named {name!r}: name a metric, or a measure ({', '.join(MEASURES)})"
        )
    return name


def _mode(name: object, mode: object) -> Mode:
    if mode == "min":
        return "min"
    if mode == "max":
        return "max"
    raise MetricError(
        f"the direction of the objective {name!r} is {mode!r}: set 'max' if a larger value is better, or 'min' if a "
        "smaller one is"
    )


def _check_first(first: str, rest: Sequence[str]) -> None:
    if first in MEASURES:
        metrics = [name for name in rest if name not in MEASURES]
        remedy = f"put {metrics[0]!r} first" if metrics else "put a metric of your spec first"
        raise MetricError(
            f"the first objective is the measure {first!r}, but it chooses the best epoch of each model: {remedy}"
        )


def _constraints(given: object) -> tuple[Constraint, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise MetricError(f"constraints are {given!r}: give a list of texts, {_EXAMPLE}")
    found: dict[tuple[str, bool], Constraint] = {}
    for text in given:
        each = _constraint(text)
        other = found.setdefault((each.name, each.is_upper), each)
        if other is not each:
            raise MetricError(
                f"the constraints {str(other)!r} and {str(each)!r} are on one limit: keep one of them"
            )
    for upper in (each for each in found.values() if each.is_upper):
        lower = found.get((upper.name, False))
        if lower and (
            lower.limit > upper.limit or not upper.is_met(lower.limit) or not lower.is_met(upper.limit)
        ):
            raise MetricError(
                f"no value can meet both constraints {str(lower)!r} and {str(upper)!r}: change a limit"
            )
    return tuple(found.values())


def _constraint(text: object) -> Constraint:
    if isinstance(text, Constraint):
        return text
    matched = _CONSTRAINT.fullmatch(text) if isinstance(text, str) else None
    if matched is None:
        raise MetricError(
            f"the constraint {text!r} is no comparison: write name, operator and number, {_EXAMPLE}"
        )
    name, operator, number = matched.groups()
    if operator not in ("<=", "<", ">=", ">"):
        raise MetricError(f"the constraint {text!r} has the operator {operator!r}: use <=, <, >= or >")
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise MetricError(
            f"the constraint {text!r} compares with {number!r}: give a finite number, {_EXAMPLE}"
        )
    return Constraint.model_validate({"name": name, "operator": operator, "limit": limit})
