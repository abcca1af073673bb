"""What finds helm and kubectl works where the development tools are not installed."""

import subprocess
import sys
from pathlib import Path

from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_PYTEST = """
import runpy, sys
sys.modules["pytest"] = None
runpy.run_module("tests.deploy.tools", run_name="__main__")
"""


def test_make_tools_needs_no_development_tools() -> None:
    """`make tools` runs this module in an environment that may hold nothing but pip: pytest is not there."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYTEST],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [Path(line).name.split(":")[0] for line in done.stdout.splitlines()] in (
        ["helm", "kubectl"],
        ["no helm", "no kubectl"],
    )
