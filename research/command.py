"""``python -m research``: scheduling and simulation without a cluster.

Only this module and `search_command` format terminal output.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro.cli.parsing import OneLineParser, count
from cerebro.errors import CerebroError, InstanceError
from research.searches import search_command
from research.searches.search_command import aligned

if TYPE_CHECKING:
    from research.comparison import Row
    from research.hermes.comparison import Row as HermesRow

DEFAULT_FAMILIES = ("thesis-", "paper-")
"""Prefixes of the scenarios that run by default: the thesis and the paper."""
_STDIN = "-"
_MISUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parser().parse_args(arguments)
    command = f"python -m research {options.command}"
    lines = _schedule(options) if options.command == "schedule" else _simulation(options)
    return _printed(command, lines)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m research", description="Schedule and simulate without a cluster: docs/scheduling.md."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    schedule = commands.add_parser("schedule", help="schedule models on workers: an instance as JSON")
    schedule.add_argument("instance", metavar="INSTANCE.json", help="a file, or - for standard input")
    schedule.add_argument(
        "--policy", metavar="NAME", help="a dispatch policy, planner, cp-sat or gurobi (default: auto)"
    )
    schedule.add_argument(
        "--time-limit", type=float, default=10.0, metavar="SECONDS", help="seconds to search (default: 10)"
    )
    schedule.add_argument("--json", action="store_true", help="one JSON object instead of a table")

    simulate = commands.add_parser("simulate", help="compare schedulers, or searches, on named scenarios")
    simulate.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help="default: the thesis's and the paper's"
    )
    simulate.add_argument("--list", action="store_true", help="list the scenarios and exit")
    simulate.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="a scheduler; may be given several times",
    )
    simulate.add_argument("--seeds", type=count, default=1, metavar="N", help="runs of each (default: 1)")
    simulate.add_argument("--sigma", type=float, metavar="S", help="noise of sub-epoch times, such as 0.1")
    simulate.add_argument("--core", action="store_true", help="dispatch by the controller's own core")
    simulate.add_argument("--json", action="store_true", help="a JSON object per scenario")
    simulate.add_argument("--svg", type=Path, metavar="DIR", help="write Gantt charts to this folder")
    search_command.add_options(simulate)
    return parser


def _printed(command: str, lines: Iterable[str]) -> int:
    """Print each line at once; an error becomes one line and exit status 2."""
    try:
        for line in lines:
            print(line, flush=True)
    except CerebroError as problem:
        print(f"{command}: {' '.join(str(problem).split())}", file=sys.stderr)
        return _MISUSED
    return 0


# --- schedule ------------------------------------------------------------------------------------


def _schedule(options: argparse.Namespace) -> Iterator[str]:
    """Yield the schedule of the instance in a file, as JSON or as a row per sub-epoch and a summary."""
    from research import instance
    from research.solve import solve

    given = instance.parse(_read(options.instance))
    solution = solve(given.problem, policy=options.policy, time_limit_s=options.time_limit)
    found = instance.answer(given, solution)
    if options.json:
        yield json.dumps(found)
        return
    rows = [("start", "end", "node", "devices", "model", "partition", "epoch")]
    for sub_epoch in found["sub_epochs"]:
        gpus = ",".join(map(str, sub_epoch["devices"]))
        where = (
            str(sub_epoch["node"]),
            gpus,
            str(sub_epoch["model"]),
            str(sub_epoch["partition"]),
            str(sub_epoch["epoch"]),
        )
        rows.append((f"{sub_epoch['start']:.6g}", f"{sub_epoch['end']:.6g}", *where))
    yield from map("  ".join, aligned(rows))
    bound, makespan = found["lower_bound"], found["makespan"]
    gap = makespan / bound - 1 if bound else 0.0
    proof = "optimal" if found["optimal"] else f"gap at most {gap:.2%}"
    yield (
        f"makespan {makespan:.6g} s, lower bound {bound:.6g} s ({proof}), by {found['policy']} "
        f"in {found['seconds']:.2f} s"
    )
    if "note" in found:
        yield found["note"]


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


# --- simulate ------------------------------------------------------------------------------------


def _simulation(options: argparse.Namespace) -> Iterator[str]:
    return _catalogue() if options.list else _simulate(options)


def _catalogue() -> Iterator[str]:
    """Yield a line for each scenario."""
    from research.hermes import comparison as hermes
    from research.scenarios import SCENARIOS
    from research.searches.searches import SCENARIOS as SEARCHES

    listed = [(each.name, each.about) for each in SCENARIOS.values()]
    listed += [(each.name, each.about) for each in hermes.SCENARIOS.values()]
    listed += [(each.name, each.about) for each in SEARCHES.values()]
    width = max(len(name) for name, _ in listed)
    for name, about in listed:
        yield f"{name:<{width}}  {about}"


def _simulate(options: argparse.Namespace) -> Iterator[str]:
    """Compare schedulers, scenario by scenario."""
    from research import core_simulation
    from research.comparison import compare, schedulers
    from research.hermes import comparison as hermes
    from research.scenarios import SCENARIOS, find
    from research.searches.searches import SCENARIOS as SEARCHES

    names = options.scenarios or [name for name in SCENARIOS if name.startswith(DEFAULT_FAMILIES)]
    engine = core_simulation.run if options.core else None
    scenarios = [find(name) for name in names if name not in hermes.SCENARIOS and name not in SEARCHES]
    for name in (name for name in names if name not in SEARCHES):
        search_command.check_unused(options, name)
    for name in (name for name in names if name in SEARCHES):
        yield from search_command.simulate(name, options)
    for name in (name for name in names if name in hermes.SCENARIOS):
        yield from _hermes(name, options)
    for scenario in scenarios:
        policies = options.policy or schedulers(scenario)
        rows = compare(scenario, policies, seeds=options.seeds, sigma=options.sigma, engine=engine)
        if options.svg:
            _draw(scenario.name, rows, options.svg)
        if options.json:
            yield json.dumps(
                {"scenario": scenario.name, "about": scenario.about, "rows": [*map(_row_json, rows)]}
            )
        else:
            yield f"{scenario.name}: {scenario.about}"
            yield from _table(rows)
            yield ""


def _hermes(name: str, options: argparse.Namespace) -> Iterator[str]:
    """Compare policies on one of Hermes's scenarios."""
    from research.hermes import job_simulation
    from research.hermes.comparison import SCENARIOS, compare

    scenario = SCENARIOS[name]
    if options.svg or options.sigma is not None:
        raise InstanceError(
            f"{name} is about when good jobs reach their goal: it has no Gantt charts, and sub-epoch times without "
            f"noise. "
            "Leave out --svg and --sigma; hermes-4-noise-15 and others have noise of the losses"
        )
    engine = job_simulation.run if options.core else None
    rows = compare(scenario, options.policy, seeds=range(options.seeds), engine=engine)
    if options.json:
        yield json.dumps({"scenario": name, "about": scenario.about, "rows": [*map(_told_of_jobs, rows)]})
        return
    yield f"{name}: {scenario.about}"
    yield "  mean time of good jobs to 90 % of their decrease / an oracle's; makespan / (work / GPUs)"
    heads = (*rows[0].to_goal, "all", "makespan", "sub_epochs" if options.core else "switches")
    cells: list[Sequence[str]] = [heads]
    for row in rows:
        means = (f"{sum(ratios) / len(ratios):.2f}" for ratios in row.to_goal.values())
        cells.append((*means, f"{row.mean:.2f}", f"{row.makespan:.3f}", f"{row.switches:.0f}"))
    width = max(len(row.policy) for row in rows)
    for policy, numbers in zip(("", *(row.policy for row in rows)), aligned(cells), strict=True):
        yield "  ".join([f"  {policy:<{width}}", *numbers])
    yield ""


def _told_of_jobs(row: HermesRow) -> dict[str, Any]:
    return {
        "policy": row.policy,
        "to_goal": {network: list(ratios) for network, ratios in row.to_goal.items()},
        "mean": row.mean,
        "makespan": row.makespan,
        "switches": row.switches,
    }


def _table(rows: Sequence[Row]) -> Iterator[str]:
    cells: list[Sequence[str]] = [("makespan s", "bound s", "ratio", "min", "max", "", "made in s")]
    for row in rows:
        ratios = (f"{value:.4f}" for value in row.ratio)
        proof = "optimal" if row.is_optimal else ""
        times = f"{row.makespan.mean:.6g}", f"{row.lower_bound:.6g}"
        cells.append((*times, *ratios, proof, f"{row.seconds.mean:.2f}"))
    names = ["", *(row.scheduler for row in rows)]
    width = max(map(len, names))
    for name, numbers in zip(names, aligned(cells), strict=True):
        yield "  ".join([f"  {name:<{width}}", *numbers])


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "scheduler": row.scheduler,
        "makespan": row.makespan._asdict(),
        "lower_bound": row.lower_bound,
        "ratio": row.ratio._asdict(),
        "seconds": row.seconds._asdict(),
        "optimal": row.is_optimal,
    }


def _draw(scenario: str, rows: Sequence[Row], folder: Path) -> None:
    from research.gantt import draw

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for row in rows:
            trial, title = row.first, f"{scenario}: {row.scheduler}"
            drawing = draw(trial.problem, trial.schedule, lower_bound=trial.lower_bound, title=title)
            (folder / f"{scenario}-{slug(row.scheduler)}.svg").write_text(drawing)
    except OSError as problem:
        raise InstanceError(f"cannot write pictures to {folder}: {problem.strerror or problem}") from problem


def slug(name: str) -> str:
    """Return a scheduler's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())
