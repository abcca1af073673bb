"""Instances and answers as JSON, the input and output of ``python -m research schedule``.

This module validates people's files, so a `Problem` is always valid. Two forms are accepted, one for each paper:

    {"times": [[seconds of model i on worker j]], "available": [[workers holding partition j]], "epochs": 1}
    {"nodes": [4, 2, 2], "runtimes": {"model": {"node": {"number of GPUs": seconds}}}, "epochs": 1}

Without ``available``, partition `j` is on worker `j`; ``epochs`` is 1 by default. Does not read files or call
solvers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cerebro.errors import InstanceError
from cerebro.scheduling.problem import Problem
from research.gantt import devices
from research.problems import multi_gpu, open_shop

if TYPE_CHECKING:
    from research.solve import Solution

_OPEN_SHOP = ("times", "available", "epochs")
_MULTI_GPU = ("nodes", "runtimes", "epochs")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_SHORTEST_S, _LONGEST_S = 1e-6, 1e9
_MAX_DIFFERENT = 1e8
"""Limits of a time, a microsecond and thirty years, and of the ratio of two times.

A time outside is a mistake; sums of times inside are exact enough.
"""
_MAX_SUB_EPOCHS = 1_000_000
_MAX_GPUS = 1_024


@dataclass(frozen=True)
class Instance:
    """A problem, and the answer's names of its models: the row in ``times``, or the name in ``runtimes``."""

    problem: Problem
    labels: tuple[int, ...] | tuple[str, ...]


def parse(text: str) -> Instance:
    """Parse the instance in a JSON text.

    Raises:
        InstanceError: the text is not JSON, has neither form or both, or has no schedule; the message names the entry.
    """
    found = _decoded(text)
    if not isinstance(found, dict):
        raise InstanceError(
            f"the instance is {_kind(found)}, expected an object with times, or nodes and runtimes"
        )
    is_open_shop = "times" in found
    if is_open_shop and not found.keys().isdisjoint(_MULTI_GPU[:2]):
        raise InstanceError("the instance has times as well as nodes or runtimes: give one of the two forms")
    known = _OPEN_SHOP if is_open_shop else _MULTI_GPU
    for required in known[: 1 if is_open_shop else 2]:
        if required not in found:
            raise InstanceError(f"the instance has no {required!r}: give either times, or nodes and runtimes")
    for key in found:
        if key not in known:
            raise InstanceError(f"the instance has an unknown key {key!r}, expected {', '.join(known)}")
    instance = _open_shop(found) if is_open_shop else _multi_gpu(found)
    _check_range(instance.problem)
    return instance


def _check_range(problem: Problem) -> None:
    """Check that the times are similar enough for sums of floats to distinguish sub-epochs."""
    times = [
        parallel_plan.seconds
        for row in problem.parallel_plans
        for parallel_plans in row
        for parallel_plan in parallel_plans
    ]
    if max(times) > _MAX_DIFFERENT * min(times):
        raise InstanceError(
            f"times go from {min(times):g} to {max(times):g} s, expected the longest to be at most {_MAX_DIFFERENT:g} "
            "times the shortest: leave the negligible models out"
        )


def answer(instance: Instance, solution: Solution) -> dict[str, Any]:
    """Return the JSON object of a solution.

    A sub-epoch's ``gpus`` is their number, and ``devices`` lists them (from 0). ``note`` is present if the solution has
    one.
    """
    placed = devices(solution.schedule.sub_epochs)
    return {
        "makespan": solution.schedule.makespan,
        "lower_bound": solution.lower_bound,
        "optimal": solution.is_optimal,
        "policy": solution.source,
        "seconds": round(solution.seconds, 6),
        **({"note": solution.note} if solution.note else {}),
        "sub_epochs": [
            {
                "model": instance.labels[sub_epoch.model],
                "node": sub_epoch.worker,
                "gpus": sub_epoch.gpus,
                "start": sub_epoch.start,
                "end": sub_epoch.end,
                "partition": sub_epoch.partition,
                "epoch": sub_epoch.epoch,
                "devices": list(placed[sub_epoch]),
            }
            for sub_epoch in solution.schedule.sub_epochs
        ],
    }


# --- the two forms ------------------------------------------------------------------------------


def _open_shop(found: Mapping[str, Any]) -> Instance:
    times = [
        [_seconds(value, f"times[{i}][{j}]") for j, value in enumerate(_list(row, f"times[{i}]"))]
        for i, row in enumerate(_list(found["times"], "times"))
    ]
    available = None
    if "available" in found:
        available = [_holders(held, p) for p, held in enumerate(_list(found["available"], "available"))]
    partitions = len(available) if available is not None else len(times[0]) if times else 0
    epochs = _epochs(found, len(times) * partitions)
    problem = open_shop(times, available, epochs=epochs)
    return Instance(problem, tuple(range(problem.num_models)))


def _holders(held: Any, partition: int) -> list[int]:
    where = f"available[{partition}]"
    found = [_integer(worker, where, least=0) for worker in _list(held, where)]
    if len(set(found)) < len(found):
        raise InstanceError(f"{where} names a worker twice: {found}")
    return found


def _multi_gpu(found: Mapping[str, Any]) -> Instance:
    nodes = [
        _integer(gpus, f"nodes[{n}]", most=_MAX_GPUS) for n, gpus in enumerate(_list(found["nodes"], "nodes"))
    ]
    runtimes = {
        model: {
            _index(node, f"runtimes[{model!r}]"): {
                _index(gpus, f"runtimes[{model!r}][{node!r}]"): _seconds(
                    value, f"runtimes[{model!r}][{node!r}][{gpus!r}]"
                )
                for gpus, value in _object(parallel_plans, f"runtimes[{model!r}][{node!r}]").items()
            }
            for node, parallel_plans in _object(places, f"runtimes[{model!r}]").items()
        }
        for model, places in _object(found["runtimes"], "runtimes").items()
    }
    problem = multi_gpu(nodes, runtimes, epochs=_epochs(found, len(runtimes) * len(nodes)))
    return Instance(problem, problem.models)


def _epochs(found: Mapping[str, Any], sub_epochs: int) -> int:
    epochs = _integer(found.get("epochs", 1), "epochs")
    if sub_epochs * epochs > _MAX_SUB_EPOCHS:
        raise InstanceError(
            f"the instance has {sub_epochs * epochs:,} sub-epochs (models x partitions x epochs), expected at most "
            f"{_MAX_SUB_EPOCHS:,}: give fewer epochs or models"
        )
    return epochs


# --- values -------------------------------------------------------------------------------------


def _decoded(text: str) -> Any:
    if not text.strip():
        raise InstanceError("the instance is empty: give an object with times, or nodes and runtimes")
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as problem:
        reason = "a number is too long" if isinstance(problem, ValueError) else "it is nested too deeply"
        if isinstance(problem, json.JSONDecodeError):
            reason = str(problem)
        raise InstanceError(f"the instance is no JSON: {reason}") from problem


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InstanceError(f"the instance has the key {twice!r} twice in one object: name it once")
    return found


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InstanceError(f"{where} is {_kind(value)}, expected a list")
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InstanceError(f"{where} is {_kind(value)}, expected an object")
    return value


def _index(text: str, where: str) -> int:
    if not _INDEX.fullmatch(text):
        raise InstanceError(f"{where} has the key {text!r}, expected a whole number")
    return int(text)


def _integer(value: Any, where: str, *, least: int = 1, most: int = _MAX_SUB_EPOCHS) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InstanceError(f"{where} is {_kind(value)}, expected a whole number from {least} to {most}")
    return value


def _seconds(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise InstanceError(f"{where} is {_kind(value)}, expected a finite number of seconds above 0")
    if not _SHORTEST_S <= value <= _LONGEST_S:
        raise InstanceError(f"{where} is {_kind(value)} s, expected {_SHORTEST_S:g} to {_LONGEST_S:g}")
    return float(value)


def _kind(value: Any) -> str:
    """Return a short value as JSON, or the kind of a longer one."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value) if not isinstance(value, int) or abs(value) < 1 << 64 else "a huge number"
    return text if len(text) < 50 else f"{text[:50]}..."
