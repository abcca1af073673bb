"""Parser of the command ``cerebro``, and its errors.

An error that Cerebro raises on purpose is one line on the terminal and exit status 1. A traceback is a bug.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cerebro.cli import (
    account,
    cluster,
    experiment_commands,
    export,
    failed_rows,
    history,
    local,
    machines,
    model_commands,
    proofs,
    recommend,
    registry,
    run,
    scale,
    stacks,
    trials,
)
from cerebro.cli.parsing import OneLineParser, count
from cerebro.errors import CerebroError

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except CerebroError as problem:
        print(f"cerebro: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # `cerebro logs | head`: the reader has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="cerebro",
        description="Clusters and experiments, from the terminal. docs/commands.md describes the commands.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    common = OneLineParser(add_help=False)
    common.add_argument(
        "--home", metavar="DIR", help="the cluster's folder (default: $CEREBRO_HOME or ~/.cerebro)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    local.register(commands, common, count)
    run.register(commands, common)
    proofs.register(commands, common)
    cluster.register(commands)
    scale.register(commands, common, count)
    account.register(commands, common, count)
    failed_rows.register(commands, common)
    trials.register(commands, common)
    experiment_commands.register(commands, common)
    model_commands.register(commands, common)
    stacks.register(commands, common)
    export.register(commands, common)
    registry.register(commands, common)
    machines.register(commands, common)
    recommend.register(commands, common)
    history.register(commands, common)
    return parser


class _Version(argparse.Action):
    """Option ``--version``: reading the packages' metadata takes time, so only when asked."""

    def __call__(self, *_: object, **__: object) -> None:
        from cerebro.local.cluster import version

        print(f"cerebro {version()}")
        sys.exit(0)
