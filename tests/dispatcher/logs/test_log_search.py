"""All logs are searched by a child process with a time limit; partial results are marked."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from cerebro.errors import BadRequestError
from cerebro.runtime.volumes import Volumes
from dispatcher.logs.log_reader import LogReader
from dispatcher.logs.view import LogQuery
from dispatcher.sandbox.bounded_processes import BoundedProcesses, ProcessResult
from tests.dispatcher.logs.printed import M05, M07, source, write


@pytest.mark.processes
def test_search_over_all_logs(volumes: Volumes) -> None:
    """Newest log first. The search ignores case, colours and overwritten text."""
    write(volumes, M05, b"first\nLoss 0.1\rLOSS 0.2 <b>\n\x1b[31mred loss\x1b[0m\n")
    write(volumes, M07, b"loss of m07\nno\n")
    hits = LogReader(volumes).search("digits", [source(M07), source(M05)], LogQuery(q="loss")).hits
    assert [(hit.source.task, hit.text_before, hit.hit, hit.text_after) for hit in hits] == [
        (M05, "", "LOSS", " 0.2 <b>"), (M05, "red ", "loss", ""), (M07, "", "loss", " of m07"),
    ]  # fmt: skip
    assert hits[0].offset == 6


@pytest.mark.processes
@pytest.mark.slow
def test_an_endless_search_is_killed(volumes: Volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page marks the result as incomplete."""
    monkeypatch.setattr("dispatcher.logs.log_reader.SEARCH_S", 0.5)
    write(volumes, M05, b"a" * 4000 + b"c\n")
    found = LogReader(volumes).search("digits", [source()], LogQuery(q=r"(a+)+b", regex=True))
    assert "stopped after 0.5 s" in found.note


@pytest.mark.processes
def test_hits_before_the_end_of_a_search_count(volumes: Volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child writes each hit immediately."""
    write(volumes, M05, b"aaab\n")
    run = BoundedProcesses.run

    def late(*arguments: Any, **named: Any) -> ProcessResult:
        return replace(run(*arguments, **named), code=-signal.SIGKILL, is_late=True)

    monkeypatch.setattr(BoundedProcesses, "run", late)
    found = LogReader(volumes).search("digits", [source()], LogQuery(q="a+b", regex=True))
    assert [hit.hit for hit in found.hits] == ["aaab"]
    assert "stopped after" in found.note


@pytest.mark.parametrize("q", ["a{99999999999999999999}", "(?P<a>x)(?P<a>y)", "a**"])
def test_an_invalid_expression_is_a_bad_request(volumes: Volumes, q: str) -> None:
    """Any exception that Python raises for the expression."""
    with pytest.raises(BadRequestError, match="is not a valid regular expression"):
        LogReader(volumes).search("digits", [source()], LogQuery(q=q, regex=True))


def test_a_failed_search_is_not_reported_as_a_timeout(
    volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that fails before its time limit is not reported as a timeout."""
    write(volumes, M05, b"x\n")
    reader = LogReader(volumes)
    for said, note in (
        (ProcessResult(output=b"", code=1), "The search failed"),
        (ProcessResult(output=b"", code=-signal.SIGKILL, is_late=True), "stopped after 6 s"),
        (ProcessResult(output=b"", code=-signal.SIGKILL, is_cut=True), "Only the newest"),
        (ProcessResult(output=b"", code=0), ""),
    ):
        monkeypatch.setattr(
            "dispatcher.sandbox.bounded_processes.BoundedProcesses.run", lambda *_, said=said, **__: said
        )
        search_note = reader.search("digits", [source()], LogQuery(q="x")).note
        assert (note in search_note) if note else search_note == ""
