"""First contact: seconds from an empty virtual environment to the leaderboard of `cerebro demo`.

pip's cache holds all packages, so the figure is without the download. The wheel is built before. The demo trains the
8 models of the digits example for 10 epochs, starts its own cluster, and runs in an empty folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Figure
from cerebro.local import cluster
from scripts.release import build_wheel, export

BAR_S = 120.0
_ROOT = Path(__file__).resolve().parents[1]


def benchmark() -> Figure:
    """Install the wheel of the last commit with the extra `local` and run the demo."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        (place / "dist").mkdir()
        export(_ROOT, place / "source")
        wheel = build_wheel(place / "source", place / "dist", {})
        _fill_cache(place / "cache", wheel)
        began = time.monotonic()
        _install(place / "venv", wheel)
        installed = time.monotonic()
        home = place / "home"
        try:
            leaderboard = _demo(place, home)
        finally:
            cluster.stop(home)
    return Figure(
        what="a fresh virtual environment, pip install with a warm cache, and cerebro demo, up to the leaderboard",
        measured=f"install {installed - began:.0f} s, demo {leaderboard - installed:.0f} s; load average before "
        f"{load:.1f}",
        ratio=leaderboard - began,
        bar=BAR_S,
        sense="at most",
        measure="s",
    )


def _fill_cache(folder: Path, wheel: Path) -> None:
    """Download all packages, and wait until the disk is idle."""
    _pip(Path(sys.executable), "download", "-d", str(folder), f"{wheel}[local]")
    shutil.rmtree(folder)
    os.sync()


def _install(environment: Path, wheel: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    _pip(environment / "bin/python", "install", f"{wheel}[local]")


def _pip(python: Path, *arguments: str) -> None:
    options = ["-q", "--disable-pip-version-check", "-c", str(_ROOT / "constraints.txt")]
    subprocess.run([str(python), "-m", "pip", *arguments, *options], check=True)


def _demo(place: Path, home: Path) -> float:
    """Run the demo in an empty folder; return the time of the leaderboard's first row."""
    (place / "empty").mkdir()
    variables = {key: text for key, text in os.environ.items() if not key.startswith(("CEREBRO_", "PYTHON"))}
    printed = 0.0
    with subprocess.Popen(
        [str(place / "venv/bin/cerebro"), "demo"],
        cwd=place / "empty",
        env={**variables, "CEREBRO_HOME": str(home), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if not printed and line.startswith("1 ") and " finished " in line:
                printed = time.monotonic()
    if demo.returncode or not printed:
        raise RuntimeError(f"cerebro demo ended with {demo.returncode} and printed no leaderboard")
    return printed
