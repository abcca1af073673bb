"""Output of ``python -m benchmarks`` as a table and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import pytest

from benchmarks.__main__ import document, main
from benchmarks.figure import Figure

FAST = Figure(what="a step", measured="2 s, reference 1 s", ratio=2.0, bar=1.5, sense="at most", measure="s")
LARGE = Figure(what="rows", measured="9 rows/s", ratio=0.9, bar=0.8, sense="at least", notes=("seen",))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register two benchmarks that measure nothing and print, one in a child process, and a broken one."""

    def talking() -> list[Figure]:
        print("from the benchmark")  # noqa: T201 - as a benchmark may
        return [FAST]

    def starting() -> Figure:
        subprocess.run([sys.executable, "-c", "print('from its child')"], check=True)
        return LARGE

    def broken() -> Figure:
        raise RuntimeError("no such machine")

    for name, function in (("loader", talking), ("etl", starting), ("hop", broken)):
        module = ModuleType(f"benchmarks.{name}")
        vars(module)["benchmark"] = function
        monkeypatch.setitem(sys.modules, f"benchmarks.{name}", module)


@pytest.mark.commands
@pytest.mark.usefixtures("measured")
def test_standard_output_has_only_json(capfd: pytest.CaptureFixture[str]) -> None:
    """Standard output is one JSON list with a row for each figure; progress and prints are on standard error."""
    assert main(["loader", "etl", "--json"]) == 0
    printed, said = capfd.readouterr()
    assert json.loads(printed) == [
        {
            "what": "a step",
            "measured": "2 s, reference 1 s",
            "ratio": 2.0,
            "bar": 1.5,
            "sense": "at most",
            "holds": False,
        },
        {
            "what": "rows",
            "measured": "9 rows/s",
            "ratio": 0.9,
            "bar": 0.8,
            "sense": "at least",
            "holds": True,
        },
    ]
    assert "from the benchmark" in said
    assert "from its child" in said
    assert "loader ..." in said


@pytest.mark.usefixtures("measured")
def test_a_broken_benchmark_keeps_the_rows_of_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    """The list has the measured rows, standard error the traceback, and the exit status is 1."""
    assert main(["hop", "loader", "--json"]) == 1
    printed, said = capfd.readouterr()
    assert [row["what"] for row in json.loads(printed)] == ["a step"]
    assert "no such machine" in said


def test_an_infinite_ratio_is_null_in_json() -> None:
    """JSON has no infinity."""
    row = Figure(what="proof", measured="none", ratio=float("inf"), bar=1.0, sense="at most").row()
    assert (row["ratio"], row["holds"]) == (None, False)


@pytest.mark.commands
@pytest.mark.usefixtures("measured")
def test_standard_output_is_restored_after_json(capfd: pytest.CaptureFixture[str]) -> None:
    """Without ``--json`` the table is on standard output, also after a call with it."""
    main(["loader", "--json"])
    capfd.readouterr()
    assert main(["etl"]) == 0
    printed, _ = capfd.readouterr()
    assert "at least 0.8" in printed
    assert "etl: seen" in printed


def test_results_keep_the_sections_of_other_benchmarks() -> None:
    """A run of one benchmark replaces only its section and keeps the order."""
    before = "# Results\n\n## gap\n\nold\n\n## loader\n\nkept\n"
    after = document(before, {"gap": [FAST]}, "2026-01-02 (a machine).")
    assert after.split("\n## ") == [
        "# Results\n",
        "loader\n\nkept\n",
        "gap\n\n2026-01-02 (a machine).\n\n| what | measured | ratio | bar | holds |\n| --- | --- | --- | --- | --- |\n"
        "| a step | 2 s, reference 1 s | 2.0 s | at most 1.5 s | NO |\n",
    ]
