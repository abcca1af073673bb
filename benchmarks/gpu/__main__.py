"""Measure and check Cerebro on one GPU: ``python -m benchmarks.gpu [SECTION...] [--json FILE]``.

Sections run in order of importance, each in its own process. A section ends at its deadline at the latest; the time
that it does not use passes to the later ones. A failure is a row of the table. The JSON file is written after each
section. ``--device cpu --small`` rehearses the script on a machine without a GPU. The exit status is 1 if something
failed or a check does not hold.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

SECTIONS = {
    "fused": 105.0,
    "sharing": 55.0,
    "memory": 90.0,
    "loader": 35.0,
    "hop": 70.0,
    "replay": 45.0,
    "nvml": 20.0,
    "plans": 95.0,
}
"""Section -> its seconds. Each is a module with a function `measure`."""
LIMIT_S = 515.0
"""Seconds of all sections together."""
_ON_CPU = 10
"""Factor on all limits in a rehearsal on a CPU."""
_GRACE_S = 15.0
"""Seconds after its deadline for a section to end its clusters."""
_KILL_S = 5.0
"""Seconds between asking a section to end and killing it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sections, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"any of {', '.join(SECTIONS)}; default: all"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    parser.add_argument("--small", action="store_true", help="small models and few rows, for a rehearsal")
    parser.add_argument("--json", type=Path, help="file for all rows (default: gpu.json in $OUT, if set)")
    parser.add_argument(
        "--seconds", type=float, default=LIMIT_S, help="limit in total (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, help="existing folder for temporary files, on a local disk")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    target = arguments.json or (Path(os.environ["OUT"], "gpu.json") if os.environ.get("OUT") else None)
    began, found = time.monotonic(), _machine(arguments.device)
    print(json.dumps(found["machine"]), flush=True)
    factor = 1 if arguments.device == "cuda" else _ON_CPU
    last = began + factor * arguments.seconds
    deadline = began
    for name in arguments.sections or SECTIONS:
        deadline = min(deadline + factor * SECTIONS[name], last)
        found["sections"][name] = section = _run(name, arguments, deadline)
        _print(name, section)
        if target is not None:  # after each section, so that its results stay
            target.write_text(json.dumps(found, indent=1))
    print(f"{time.monotonic() - began:.0f} s in total")
    rows = [row for section in found["sections"].values() for row in section["rows"]]
    return 0 if all(row["holds"] is not False for row in rows) else 1


def _run(name: str, arguments: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """Run a section in a child process. Returns its rows and seconds."""
    from benchmarks.gpu.section import Row
    from cerebro.local import cluster

    with suppress(Exception):  # the section reports it
        importlib.import_module(f"benchmarks.gpu.{name}")

    began = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="cerebro-gpu-", dir=arguments.folder, ignore_cleanup_errors=True
    ) as folder:
        file, files = Path(folder, "rows.jsonl"), Path(folder, "files")
        files.mkdir()
        # A fork has torch and the sections' modules already, and CUDA starts in the child only.
        child = multiprocessing.get_context("fork").Process(
            target=_measure_section, args=(name, arguments, files, deadline, file)
        )
        child.start()
        child.join(max(1.0, deadline + _GRACE_S - time.monotonic()))
        is_late = child.is_alive()
        if is_late:
            child.terminate()
            child.join(_KILL_S)
            child.kill()
            child.join()
            cluster.stop(files / "home")
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    seconds = time.monotonic() - began
    if is_late or child.exitcode:
        what = (
            f"killed {seconds:.0f} s after its start" if is_late else f"process ended with {child.exitcode}"
        )
        rows.append(Row(what=f"section {name}", measured=what, values={}, holds=False).as_json())
    return {"rows": rows, "seconds": seconds}


def _measure_section(
    name: str, arguments: argparse.Namespace, files: Path, deadline: float, target: Path
) -> None:
    import torch

    from benchmarks.gpu.section import Setting

    if arguments.device == "cpu":  # threads that wait for each other on a busy machine would take minutes
        os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
        torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that sections end their clusters
    setting = Setting(kind=arguments.device, is_small=arguments.small, folder=files, deadline=deadline)
    write_rows(name, lambda: importlib.import_module(f"benchmarks.gpu.{name}").measure(setting), target)


def write_rows(name: str, measure: Callable[[], Iterable[Any]], target: Path) -> None:
    """Append each row of a section to a file at once, and its failure as one more row."""
    from benchmarks.gpu.section import failed

    with target.open("w") as file:

        def write(row: Any) -> None:
            print(f"  {row.what}: {row.measured}", flush=True)
            file.write(json.dumps(row.as_json()) + "\n")
            file.flush()

        try:
            for row in measure():
                write(row)
        except Exception as error:  # noqa: BLE001 - the other sections still run
            write(failed(f"section {name}", error))


def _machine(device: str) -> dict[str, Any]:
    import platform
    from importlib.metadata import version

    found = {
        "time": time.strftime("%Y-%m-%d %H:%M"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "torch": version("torch"),
    }
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        with suppress(OSError):
            found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {"machine": found, "sections": {}}


def _print(name: str, section: dict[str, Any]) -> None:
    print(f"\n{name} ({section['seconds']:.0f} s)")
    marks = {True: "yes", False: "NO", None: ""}
    width = max((len(row["what"]) for row in section["rows"]), default=0)
    for row in section["rows"]:
        print(f"  {row['what'].ljust(width)}  {marks[row['holds']].ljust(3)}  {row['measured']}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
