"""Run the benchmarks: ``python -m benchmarks [NAME...] [--write] [--json]``.

Prints a table of measurements and bars; ``--json`` prints the figures as a JSON list and nothing else on standard
output. A missed bar shows in the table and leaves exit status 0; status 1 means that a benchmark could not run.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from benchmarks.figure import Figure

NAMES = (
    *(
        "loader",
        "reading_ahead",
        "ragged",
        "etl",
        "vectorised",
        "streaming",
        "hop",
        "frozen",
        "adapters",
        "gap",
        "devices",
        "warm",
        "efficiency",
        "idle",
        "release",
        "control_plane",
        "thousand_workers",
        "half_requests",
        "identities",
        "points",
    ),
    *(
        "restart",
        "growth",
        "windows",
        "savepoints",
        "step_spec",
        "techniques",
        "rank_memory",
        "parallel_plans",
        "fused",
        "gangs",
        "trials",
        "keras",
        "web",
        "allocator",
    ),
    "compare",
    "examples",
    "first_contact",
    *(
        "planner",
        "joint",
        "online",
        "exact",
        "decision",
        "stragglers",
        "autoscaler",
        "history",
        "sharing",
        "bad_device",
        "search",
        "search_pages",
        "hermes",
        "good_models",
        "conditional",
        "objectives",
        "ranking",
        "folds",
    ),
)
"""The platform's benchmarks, then the scheduler's; each is a module with a function `benchmark`."""

RESULTS = Path(__file__).with_name("RESULTS.md")
_HEADINGS = ("what", "measured", "ratio", "bar", "holds")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested benchmarks; return 1 if one could not run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}; all if none is named"
    )
    parser.add_argument("--write", action="store_true", help=f"replace their sections in {RESULTS.name}")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a list of {what, measured, ratio, bar, sense, holds}; all else goes to standard error",
    )
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(NAMES)}")
    names = arguments.names or NAMES
    if not arguments.json:
        return _run(names, arguments.write)[1]
    with _stdout_for_json() as stdout:
        figures, status = _run(names, arguments.write)
        rows = [figure.row() for found in figures.values() for figure in found]
        print(json.dumps(rows, indent=2), file=stdout)
    return status


def _run(names: Sequence[str], is_written: bool) -> tuple[dict[str, list[Figure]], int]:
    """Measure and print the table; return the figures by benchmark, and the exit status."""
    load = os.getloadavg()[0]
    figures: dict[str, list[Figure]] = {}
    broken: list[str] = []
    for name in names:
        began = time.monotonic()
        print(f"{name} ...", end=" ", flush=True)
        try:
            found = importlib.import_module(f"benchmarks.{name}").benchmark()
            figures[name] = found if isinstance(found, list) else [found]
        except Exception:  # noqa: BLE001 - after any error, the other benchmarks still run
            broken.append(name)
            print("could not run")
            traceback.print_exc()
            continue
        print(f"{time.monotonic() - began:.0f} s")
    _print(figures)
    if is_written:
        stamp = f"{datetime.date.today():%Y-%m-%d} ({', '.join(machine())}, load {load:.1f})."
        RESULTS.write_text(document(RESULTS.read_text(), figures, stamp))
        print(f"\nwritten to {RESULTS}")
    return figures, 1 if broken else 0


@contextmanager
def _stdout_for_json() -> Iterator[TextIO]:
    """Keep standard output for the caller: this process and its children print to standard error.

    The file descriptor is changed too, because benchmarks start processes that inherit it.
    """
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w") as stdout, redirect_stdout(sys.stderr):
        os.dup2(2, 1)
        try:
            yield stdout
        finally:
            stdout.flush()
            os.dup2(stdout.fileno(), 1)


def document(text: str, figures: dict[str, list[Figure]], stamp: str) -> str:
    """Replace the sections of the benchmarks that ran in the text of RESULTS.md."""
    head, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    bodies = {section.partition("\n")[0]: section for section in sections}
    bodies |= {name: _section(name, found, stamp) for name, found in figures.items()}
    ordered = sorted(bodies, key=lambda name: NAMES.index(name) if name in NAMES else len(NAMES))
    return "\n\n## ".join([head.strip(), *(bodies[name].strip() for name in ordered)]) + "\n"


def _section(name: str, found: list[Figure], stamp: str) -> str:
    rows = [_HEADINGS, ("---",) * len(_HEADINGS), *(figure.cells() for figure in found)]
    table = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([name, "", stamp, "", *table])


def machine() -> tuple[str, ...]:
    """Describe the machine: processor, memory, versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB of memory",
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, torch {version('torch')}",
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _print(figures: dict[str, list[Figure]]) -> None:
    rows = [_HEADINGS, *(figure.cells() for found in figures.values() for figure in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for name, found in figures.items():
        for note in (note for figure in found for note in figure.notes):
            print(f"  {name}: {note}")


if __name__ == "__main__":
    sys.exit(main())
