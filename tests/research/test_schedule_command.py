"""``python -m research schedule``: a file or standard input becomes a table or JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from research import command

TIMES = '{"times": [[1, 2], [2, 1]]}'


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    """A file in the paper's form."""
    path = tmp_path / "instance.json"
    path.write_text(TIMES)
    return path


def give(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Put bytes on standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_json_is_one_object(instance: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard output, and nothing on standard error."""
    assert command.main(["schedule", str(instance), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert said.out.count("\n") == 1
    assert said.err == ""
    assert (found["makespan"], found["lower_bound"], found["optimal"]) == (3, 3, True)
    assert {(sub_epoch["model"], sub_epoch["node"]) for sub_epoch in found["sub_epochs"]} == {
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    }


def test_the_table_has_a_row_for_each_sub_epoch_and_a_summary(
    instance: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary has makespan, bound, proof, source and solve time."""
    assert command.main(["schedule", str(instance), "--policy", "fifo", "--time-limit", "1.5"]) == 0
    heading, *rows, summary = capsys.readouterr().out.splitlines()
    assert heading.split() == ["start", "end", "node", "devices", "model", "partition", "epoch"]
    assert [row.split()[:2] for row in rows] == [["0", "1"], ["0", "1"], ["1", "3"], ["1", "3"]]
    assert summary.startswith("makespan 3 s, lower bound 3 s (optimal), by fifo in ")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the instance is empty"),
        (b"{", "the instance is no JSON"),
        (b"\xff\xfe", "- is not UTF-8 text"),
        (b'{"times": [[1, NaN]]}', "times[0][1] is NaN, expected a finite number of seconds above 0"),
        (b'{"times": [[1]], "available": [[]]}', "partition 0 is held by no worker"),
        (b'{"nodes": [1], "runtimes": {"a\\n": {"0": {"2": 1}}}}', "model 'a\\n' on node-0 asks for 2 GPUs"),
    ],
)
def test_an_invalid_instance_is_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, data: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 2."""
    give(monkeypatch, data)
    assert command.main(["schedule", "-"]) == 2
    assert_one_line(capsys, said)


def assert_one_line(capsys: pytest.CaptureFixture[str], said: str) -> None:
    """Check that the output is one line on standard error."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"python -m research schedule: {said}")
