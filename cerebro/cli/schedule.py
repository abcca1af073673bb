"""``cerebro schedule``: an instance in, a schedule out, as a table or as JSON.

Words and files only; the instance's form is the matter of `cerebro.research.instance`, and who prints it that of
`cerebro.cli`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cerebro.errors import InstanceError

_STDIN = "-"


def lines(source: str, *, policy: str | None, time_limit: str | None, as_json: bool) -> list[str]:
    """What to print: the schedule of the instance in a file.

    Args:
        source: path of the instance, ``-`` for standard input.
        policy: one of `cerebro.research.solve.METHODS`; ``auto`` if left out.
        time_limit: seconds to search, as they were typed.
        as_json: one JSON object instead of a table.

    Raises:
        CerebroError: the file, the instance or an argument cannot be used, or the solver that was asked for is missing.
    """
    from cerebro.research import instance
    from cerebro.research.solve import DEFAULT_TIME_LIMIT_S, solve

    limit = DEFAULT_TIME_LIMIT_S if time_limit is None else _seconds(time_limit)
    given = instance.parse(_read(source))
    found = instance.answer(given, solve(given.problem, policy=policy, time_limit_s=limit))
    return [json.dumps(found)] if as_json else list(_table(found))


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError as problem:
        raise InstanceError(f"the time limit is {text!r}, expected a number of seconds") from problem


def _read(source: str) -> str:
    try:
        data = sys.stdin.buffer.read() if source == _STDIN else Path(source).read_bytes()
        return data.decode()
    except OSError as problem:
        raise InstanceError(f"cannot read {source}: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise InstanceError(
            f"{source} is not UTF-8 text: {problem.reason} at byte {problem.start}"
        ) from problem


def _table(found: dict[str, Any]) -> Iterator[str]:
    """A row for each unit, then what it all comes to."""
    rows = [("start", "end", "node", "devices", "model", "partition", "epoch")]
    for unit in found["units"]:
        gpus = ",".join(map(str, unit["devices"]))
        where = (str(unit["node"]), gpus, str(unit["model"]), str(unit["partition"]), str(unit["epoch"]))
        rows.append((f"{unit['start']:.6g}", f"{unit['end']:.6g}", *where))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    bound, makespan = found["lower_bound"], found["makespan"]
    gap = makespan / bound - 1 if bound else 0.0
    proof = "optimal" if found["optimal"] else f"gap at most {gap:.2%}"
    yield (
        f"makespan {makespan:.6g} s, lower bound {bound:.6g} s ({proof}), by {found['policy']} "
        f"in {found['seconds']:.2f} s"
    )
    if "note" in found:
        yield found["note"]
