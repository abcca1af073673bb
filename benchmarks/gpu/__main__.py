"""Measure and check Cerebro on one GPU: ``python -m benchmarks.gpu [SECTION...] [--json FILE]``.

Each section runs in its own process with a time limit. A section that fails is reported with its traceback, and the
others still run. ``--device cpu --small`` rehearses the script on a machine without a GPU. The exit status is 1 if a
section failed or a check does not hold.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECTIONS = {"nvml": 40.0, "loader": 40.0, "hop": 110.0, "plans": 190.0, "memory": 110.0, "cluster": 100.0}
"""Section -> limit in seconds. Each is a module with a function `measure`."""
LIMIT_S = 530.0
"""Limit of all sections together."""
_ON_CPU = 10
"""Factor on a section's limit in a rehearsal on a CPU."""
_GRACE_S = 15.0
"""Seconds for a section at its limit to end its processes."""


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
    parser.add_argument("--rows-to", type=Path, help=argparse.SUPPRESS)  # runs the section in this process
    parser.add_argument("--limit", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    if arguments.rows_to is not None:
        return _measure(arguments)
    target = arguments.json or (Path(os.environ["OUT"], "gpu.json") if os.environ.get("OUT") else None)
    began, found = time.monotonic(), _machine(arguments.device)
    print(json.dumps(found["machine"]), flush=True)
    for name in arguments.sections or SECTIONS:
        left_s = arguments.seconds - (time.monotonic() - began) - _GRACE_S
        most_s = SECTIONS[name] * (1 if arguments.device == "cuda" else _ON_CPU)
        found["sections"][name] = section = _run(name, arguments, min(most_s, left_s))
        _print(name, section)
        if target is not None:  # after each section, so that its results stay
            target.write_text(json.dumps(found, indent=1))
    print(f"{time.monotonic() - began:.0f} s in total")
    sections = found["sections"].values()
    is_good = all(not s["problem"] and all(row["holds"] is not False for row in s["rows"]) for s in sections)
    return 0 if is_good else 1


def _run(name: str, arguments: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """Run a section in a child process. Returns its rows, seconds and failure."""
    began = time.monotonic()
    if limit_s < 1:
        return {"rows": [], "seconds": 0.0, "problem": "no time was left"}
    with tempfile.TemporaryDirectory(
        prefix="cerebro-gpu-", dir=arguments.folder, ignore_cleanup_errors=True
    ) as folder:
        rows = Path(folder, "rows.jsonl")
        command = [sys.executable, "-m", "benchmarks.gpu", name, "--device", arguments.device]
        command += [
            "--rows-to",
            str(rows),
            "--limit",
            str(limit_s),
            *(["--small"] if arguments.small else []),
        ]
        child = subprocess.Popen(command)
        problem = ""
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            problem = f"ended at its limit of {limit_s:.0f} s"
            child.terminate()
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        lines = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    problems = [line["problem"] for line in lines if "problem" in line]
    if not problem and child.returncode:
        problem = "\n".join(problems) or f"its process ended with status {child.returncode}"
    return {
        "rows": [line for line in lines if "problem" not in line],
        "seconds": time.monotonic() - began,
        "problem": problem,
    }


def _measure(arguments: argparse.Namespace) -> int:
    """Run one section in this process, and append each row to a file at once."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that sections end their clusters
    from benchmarks.gpu.section import Setting

    (name,) = arguments.sections
    folder = arguments.rows_to.parent / "files"
    folder.mkdir()
    deadline = time.monotonic() + arguments.limit
    setting = Setting(kind=arguments.device, is_small=arguments.small, folder=folder, deadline=deadline)
    with arguments.rows_to.open("w") as file:

        def write(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        try:
            for row in importlib.import_module(f"benchmarks.gpu.{name}").measure(setting):
                print(f"  {row.what}: {row.measured}", flush=True)
                write(row.as_json())
        except Exception:  # noqa: BLE001 - the parent reports it, and the other sections still run
            write({"problem": traceback.format_exc()})
            return 1
    return 0


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
        found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {"machine": found, "sections": {}}


def _print(name: str, section: dict[str, Any]) -> None:
    print(f"\n{name} ({section['seconds']:.0f} s)")
    marks = {True: "yes", False: "NO", None: ""}
    width = max((len(row["what"]) for row in section["rows"]), default=0)
    for row in section["rows"]:
        print(f"  {row['what'].ljust(width)}  {marks[row['holds']].ljust(3)}  {row['measured']}")
    if section["problem"]:
        print(f"  FAILED: {section['problem']}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
