"""``cerebro rows EXPERIMENT [RUN]``: print the rows that tested models get wrong, or where two models disagree."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cerebro.cli import text


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``rows`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    rows = commands.add_parser(
        "rows",
        parents=[common],
        help="print the rows that tested models get wrong, or where two of them disagree",
    )
    rows.add_argument("experiment", metavar="EXPERIMENT")
    rows.add_argument(
        "of_run",
        metavar="RUN",
        nargs="?",
        default="",
        help="such as test-1 (default: the newest test run with values per row)",
    )
    rows.add_argument(
        "--disagree",
        nargs=2,
        metavar="M",
        default=(),
        help="two models: print the rows where they differ most, instead of the hardest rows",
    )
    rows.add_argument("--size", type=int, default=20, help="maximum number of rows, up to 100 (default: 20)")
    rows.add_argument(
        "--metric", default="", help="metric with values per row (default: that of the fit run)"
    )
    rows.add_argument("--mode", choices=("max", "min"), default="", help="max if higher is better, or min")
    rows.add_argument("--json", action="store_true", help="print JSON: both lists of rows")
    rows.set_defaults(run=_rows)


def _rows(options: argparse.Namespace) -> int:
    from cerebro.client.connection import connect
    from cerebro.client.session import Session
    from cerebro.errors import DataError
    from cerebro.figures.ranking.results import chosen_test
    from cerebro.figures.ranking.row_tables import compare_rows
    from cerebro.figures.ranking.rows import MAX_SIZE, rows_request

    if not 1 <= options.size <= MAX_SIZE:
        raise DataError(f"--size is {options.size}, expected 1 to {MAX_SIZE}")
    connection = connect(home=options.home, start=False)
    state = Session(connection, connection.kvs.experiment(options.experiment)).state()
    request = rows_request(
        state,
        chosen_test(state, options.of_run),
        metric=options.metric,
        mode=options.mode,
        disagree=tuple(options.disagree),
    ).model_copy(update={"size": options.size})
    found = compare_rows(request, lambda name: connection.files.shared(name).open("rb"))
    if options.json:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
        return 0
    shown = found.disagree if options.disagree else found.hardest
    cells = [(str(row.id), *(f"{value:.6g}" for value in (row.mean, *row.values))) for row in shown]
    sys.stdout.writelines(f"{line}\n" for line in text.table(["ROW", "MEAN", *found.models], cells))
    if options.disagree:
        sys.stdout.write(
            f"{' and '.join(found.models[:2])} differ on {found.different:,} of {found.rows:,} rows.\n"
        )
    return 0
