"""``cerebro schedule``, ``simulate``: schedulers without a cluster."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from cerebro.errors import CerebroError

_MISUSED = 2


def register(commands: Any) -> None:
    """Add them to the subcommands of ``cerebro``."""
    schedule = commands.add_parser("schedule", help="schedule models on workers: an instance as JSON")
    schedule.add_argument("instance", metavar="INSTANCE.json", help="a file, or - for standard input")
    schedule.add_argument(
        "--policy", metavar="NAME", help="a dispatch policy, planner, cp-sat or gurobi (default: auto)"
    )
    schedule.add_argument("--time-limit", metavar="SECONDS", help="seconds to search (default: 10)")
    schedule.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    schedule.set_defaults(run=_schedule)

    simulate = commands.add_parser("simulate", help="compare schedulers on named scenarios")
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
    simulate.add_argument("--seeds", default="1", metavar="N", help="runs of each (default: 1)")
    simulate.add_argument("--sigma", metavar="S", help="noise of unit times, such as 0.1")
    simulate.add_argument("--core", action="store_true", help="dispatch by the controller's own core")
    simulate.add_argument("--json", action="store_true", help="a JSON object per scenario")
    simulate.add_argument("--svg", type=Path, metavar="DIR", help="write Gantt charts to this folder")
    simulate.set_defaults(run=_simulate)


def _schedule(options: argparse.Namespace) -> int:
    from cerebro.cli import schedule as cli_schedule

    try:
        lines = cli_schedule.lines(
            options.instance, policy=options.policy, time_limit=options.time_limit, as_json=options.json
        )
    except CerebroError as problem:  # a mistake in what was given is one in the arguments
        print(f"cerebro schedule: {' '.join(str(problem).split())}", file=sys.stderr)
        return _MISUSED
    print(*lines, sep="\n")
    return 0


def _simulate(options: argparse.Namespace) -> int:
    from cerebro.cli import simulate as cli_simulate

    if options.list:
        print(*cli_simulate.catalogue(), sep="\n")
        return 0
    try:
        for line in cli_simulate.lines(
            options.scenarios,
            policies=options.policy,
            seeds=options.seeds,
            sigma=options.sigma,
            by_core=options.core,
            as_json=options.json,
            pictures=options.svg,
        ):
            print(line, flush=True)
    except CerebroError as problem:
        print(f"cerebro simulate: {' '.join(str(problem).split())}", file=sys.stderr)
        return _MISUSED
    return 0
