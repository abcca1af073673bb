"""``cerebro run``: an experiment file, from data to predictions."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add it to the subcommands of ``cerebro``."""
    run = commands.add_parser(
        "run", parents=[common], help="carry out an experiment file, from data to predictions"
    )
    run.add_argument("file", type=Path, metavar="FILE.yaml")
    run.add_argument(
        "--dry-run", action="store_true", help="try a few rows and one batch in this process; nothing is sent"
    )
    run.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where tables and the report are left (default: as the file says)",
    )
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.home:
        os.environ["CEREBRO_HOME"] = options.home  # user code may look for the cluster, too
    from cerebro.client.experiment_file.study import Study

    study = Study.open(options.file, output=options.output)
    if options.dry_run:
        print(study.dry_run())
        return 0
    try:
        study.run(lambda told: print(told, flush=True))
    except KeyboardInterrupt:
        name = study.file.name
        print(
            f"\nThe cluster goes on with {name}: `cerebro status {name}` shows it, `cerebro stop {name}` ends it."
        )
        raise
    return 0
