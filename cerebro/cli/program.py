"""The command ``cerebro``: builds the parser from each module's `register`, runs one command, prints errors.

An error that Cerebro raises on purpose is one line on the terminal and exit status 1. A traceback is a bug. The
commands themselves are in `cerebro.cli.administration` and `cerebro.cli.experiments`.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from cerebro.cli.administration import (
    account,
    aws,
    completion,
    history,
    local,
    machines,
    notify,
    recommend,
    scale,
    shipped,
    web_page,
)
from cerebro.cli.experiments import (
    commands,
    export,
    failed_rows,
    model_commands,
    proofs,
    ranking,
    registry,
    rows,
    run,
    stacks,
    tags,
    trials,
)
from cerebro.cli.parsing import GroupedParser, OneLineParser, count
from cerebro.errors import CerebroError, MissingPackageError

GROUPS = {
    "start": ("demo", "up", "down", "run", "selftest", "files", "completion"),
    "watch": ("status", "open", "logs", "failed-rows", "stacks", "trials", "notify"),
    "steer": (
        "stop",
        "resume",
        "retry",
        "add",
        "clone",
        "change",
        "extend",
        "prioritize",
        "scheduler",
        "stop-search",
    ),
    "results": (
        "ranking",
        "rows",
        "models",
        "register",
        "alias",
        "export",
        "replay",
        "tag",
        "archive",
        "unarchive",
        "delete",
    ),
    "administer": (
        "doctor",
        "scale",
        "recommend",
        "check",
        "quarantine",
        "release",
        "remove",
        "restore",
        "forget",
        "token",
        "quota",
        "audit",
        "cluster",
    ),
}
"""Title of a group of commands in ``cerebro --help`` -> its commands."""

_SYNONYMS = {
    "best": "status",
    "leaderboard": "status",
    "list": "status",
    "ls": "status",
    "results": "status",
    "ui": "open",
    "web": "open",
}
"""Word that other tools use -> the command that does it."""

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    parser = build_parser()
    completion.complete(parser, os.environ)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except CerebroError as problem:
        print(f"cerebro: {problem}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as cause:
        if _is_from_user_code(cause):
            raise
        print(f"cerebro: {MissingPackageError.from_import(cause)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        for note in getattr(interrupt, "__notes__", ()):
            print(f"\n{note}")
        return _INTERRUPTED
    except BrokenPipeError:  # `cerebro logs | head`: the reader has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _is_from_user_code(cause: ModuleNotFoundError) -> bool:
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(cause.__traceback__)]
    importer = next(file for file in reversed(files) if "importlib" not in file)
    return not Path(importer).is_relative_to(Path(__file__).parents[1])


def build_parser() -> GroupedParser:
    """Build the parser with all commands; the command reference is written from it. `groups` has their groups."""
    parser = GroupedParser(
        prog="cerebro",
        description="Clusters and experiments, from the terminal.",
        epilog="`cerebro COMMAND --help` lists the options of a command.",
    )
    parser.groups, parser.synonyms = GROUPS, _SYNONYMS
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    common = OneLineParser(add_help=False)
    common.add_argument(
        "--home", metavar="DIR", help="the cluster's folder (default: $CEREBRO_HOME or ~/.cerebro)"
    )
    parsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=OneLineParser)
    shipped.register(parsers, common, count)
    local.register(parsers, common, count)
    web_page.register(parsers, common)
    run.register(parsers, common)
    proofs.register(parsers, common)
    aws.register(parsers)
    scale.register(parsers, common, count)
    account.register(parsers, common, count)
    notify.register(parsers, common)
    failed_rows.register(parsers, common)
    ranking.register(parsers, common)
    rows.register(parsers, common)
    trials.register(parsers, common)
    commands.register(parsers, common)
    model_commands.register(parsers, common)
    tags.register(parsers, common)
    stacks.register(parsers, common)
    export.register(parsers, common)
    registry.register(parsers, common)
    machines.register(parsers, common)
    recommend.register(parsers, common)
    history.register(parsers, common)
    completion.register(parsers)
    completion.add_completers(parser)
    return parser


class _Version(argparse.Action):
    """Option ``--version``: reading the packages' metadata takes time, so only when asked."""

    def __call__(self, *_: object, **__: object) -> None:
        from cerebro.local.cluster import version

        print(f"cerebro {version()}")
        sys.exit(0)
