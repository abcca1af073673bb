"""The code of the tutorial and of the pages after it, run on a local cluster as a user would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cerebro.local import cluster
from cerebro.local.supervision import processes
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs/tutorial.md"
NEXT = ("data", "training", "experiments")
"""Pages whose blocks are scripts of their own."""
GUIDES = ("search", "techniques", "forecasts", "registry", "scheduling", "keras")
"""Pages whose blocks use names of the reader."""
_GUIDES = ROOT / "tests/docs/run_guides.py"


def blocks(page: Path) -> list[str]:
    """Return the Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class User:
    """A user with an empty home folder, which is the working directory, too."""

    home: Path

    def run(self, code: str) -> str:
        """Run code as a script; return the output."""
        script = self.home / "script.py"
        script.write_text(code)
        own = {name: text for name, text in os.environ.items() if not name.startswith("CEREBRO_")}
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            env=own | {"HOME": str(self.home), "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch"},
            cwd=self.home,
            timeout=4 * HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """Shared by the tests of this file."""
    user = User(tmp_path_factory.mktemp("user"))
    yield user
    cluster.stop(user.home / ".cerebro")
    assert processes.marked(user.home / ".cerebro") == ()


@pytest.fixture(scope="module")
def output(user: User) -> str:
    """Output of the whole tutorial."""
    return user.run("\n".join(blocks(TUTORIAL)))


@pytest.fixture(scope="module")
def next_output(user: User, output: str) -> list[str]:
    """Outputs of the blocks of the next pages, each a script. The guides run later: they leave stopped fits."""
    assert "nothing failed" in output
    return [user.run(block) for page in NEXT for block in blocks(ROOT / f"docs/{page}.md")]


@pytest.mark.slow
@pytest.mark.processes
def test_the_tutorial_trains_and_predicts(user: User, output: str) -> None:
    """The dry run prints the documented steps; the models beat a guess; every row gets a prediction."""
    (documented,) = re.findall(r"^```text\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    steps = [line[:20].strip() for line in documented.splitlines()]
    printed = [line[:20].strip() for line in output.splitlines()]
    assert [step for step in steps if step not in printed] == []
    best = re.search(r"^1 +m\d+ +finished +([\d.]+)", output, re.MULTILINE)
    assert best is not None
    assert float(best[1]) > 0.85
    assert len((user.home / "predictions.csv").read_text().splitlines()) == 1 + 200


@pytest.mark.slow
@pytest.mark.processes
def test_the_code_of_the_next_pages_runs_after_the_tutorial(next_output: list[str]) -> None:
    """The pages follow the tutorial."""
    assert len(next_output) >= 3
    assert "fit-1: finished, 80/80 done" in "".join(next_output)


@pytest.mark.slow
@pytest.mark.processes
def test_the_examples_of_the_guides_run_after_the_tutorial(user: User, next_output: list[str]) -> None:
    """Each block gets an experiment, a spec and a space. A thread stops the fits, which would take hours."""
    found = {page: blocks(ROOT / f"docs/{page}.md") for page in GUIDES}
    assert all(found.values())
    specs = "\n".join(block for block in blocks(TUTORIAL) if "class Customer" in block)
    code = "\n".join(["import numpy as np", specs, _GUIDES.read_text()])
    (user.home / "blocks.json").write_text(
        json.dumps([[page, block] for page in found for block in found[page]])
    )
    printed = user.run(code)
    assert printed.count("ran ") == sum(map(len, found.values()))


def test_every_page_with_code_is_run_by_a_test() -> None:
    """A block that no test can run is marked `py` instead of `python`."""
    # tests/worker/training/test_adapters.py, tests/examples/test_docs.py, tests/examples/test_lora.py,
    # tests/search/test_check_procedure.py
    elsewhere = {"coming-from", "extend", "fine-tuning"}
    pages = {path.stem for path in ROOT.glob("docs/*.md") if blocks(path)}
    assert pages == {"tutorial", *NEXT, *GUIDES, *elsewhere}


def test_the_tutorial_introduces_six_concepts_before_the_first_result() -> None:
    """Concepts are bold where they are introduced; the dry run is the first result."""
    before, _, _ = TUTORIAL.read_text().partition("This is your first result.")
    concepts = re.findall(r"\*\*([^*]+)\*\*", before)
    assert 0 < len(concepts) <= 6, concepts
