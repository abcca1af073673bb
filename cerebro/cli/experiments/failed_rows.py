"""``cerebro failed-rows EXPERIMENT``: print the rows that preprocessing skipped or failed on.

`cerebro.client.results.failed_table` reads the table from the files of an ETL run. Writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cerebro.cli import text
from cerebro.contract.texts import first_line

if TYPE_CHECKING:
    import pandas as pd


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``failed-rows`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    failed = commands.add_parser(
        "failed-rows", parents=[common], help="show rows that preprocessing skipped or failed on"
    )
    failed.add_argument("experiment", metavar="EXPERIMENT")
    failed.add_argument(
        "--run", metavar="R", dest="of_run", help="such as etl-1 (default: the newest ETL run)"
    )
    failed.add_argument("--traceback", action="store_true", help="show the traceback of each row")
    failed.set_defaults(run=_failed_rows)


def _failed_rows(options: argparse.Namespace) -> int:
    from cerebro.client.connection import connect
    from cerebro.client.results import failed_table
    from cerebro.client.session import Session

    connection = connect(home=options.home, start=False)
    session = Session(connection, connection.kvs.experiment(options.experiment))
    run, plan = session.chosen_etl(options.of_run)
    for line in lines(
        run.id,
        failed_table(plan, connection.files, experiment=session.name, run=run),
        with_traceback=options.traceback,
    ):
        sys.stdout.write(f"{line}\n")
    return 0


def lines(run: str, table: pd.DataFrame, *, with_traceback: bool) -> Iterator[str]:
    """Yield one line for each failed row, then their number."""
    notes = table.attrs.get("notes", [])
    if table.empty:
        yield f"The failed rows of {run} are unknown." if notes else f"No row of {run} failed."
        yield from notes
        return
    cells = [(str(row.split), str(row.id), first_line(str(row.error))) for row in table.itertuples()]
    head, *lines_of_rows = text.table(("SPLIT", "ID", "ERROR"), cells)
    yield head
    for row, line in zip(table.itertuples(), lines_of_rows, strict=True):
        yield line
        if with_traceback:
            yield from (f"    {each}" for each in str(row.traceback).rstrip().splitlines())
    total = max(int(table.attrs.get("total", 0)), len(table))
    more = "" if total == len(table) else f"; the first {len(table):,} are shown"
    yield f"{text.counted(total, 'row')} of {run} failed{more}."
    yield from notes
