"""``cerebro run``: run an experiment file, from data to predictions. `cerebro.client.experiment_file` does the work.

The command waits for each run and prints its progress. Ctrl-C ends the command, not the run on the cluster.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``run`` to the subcommands."""
    run = commands.add_parser(
        "run", parents=[common], help="run an experiment file, from data to predictions"
    )
    run.add_argument("file", type=Path, metavar="FILE.yaml")
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="try a few rows and one batch in this process, without a cluster",
    )
    run.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for tables and the report (default: see the file)",
    )
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.home:
        os.environ["CEREBRO_HOME"] = options.home  # User code may connect to the cluster.
    from cerebro.client.experiment_file.study import Study

    study = Study.open(options.file, output=options.output)
    if options.dry_run:
        print(study.dry_run())
        return 0
    try:
        study.run(lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        name = study.file.name
        print(
            f"\nThe cluster continues {name}: see it with `cerebro status {name}`, end it with `cerebro stop {name}`."
        )
        raise
    return 0
