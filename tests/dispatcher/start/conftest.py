"""Run locator checks in forks of a preloaded process. The tests in test_locator_store start real programs instead."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Self

import pytest

from dispatcher.sandbox import bounded_processes
from tests.forking import Forked, Forks


class FakePopen:
    """A double for `subprocess.Popen` as used by `BoundedProcesses`."""

    def __init__(self, forks: Forks, environment: Mapping[str, str]) -> None:
        question, answer, errors = os.pipe(), os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(question[1], "wb"), os.fdopen(answer[0], "rb")
        self.stderr = os.fdopen(errors[0], "rb")
        with (
            os.fdopen(question[0], "rb") as stdin,
            os.fdopen(answer[1], "wb") as stdout,
            os.fdopen(errors[1], "wb") as stderr,
        ):
            self._process: Forked = forks.start(
                [], environment=environment, stdin=stdin, stdout=stdout, stderr=stderr
            )
        self.wait, self.kill = self._process.wait, self._process.kill

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()

    @property
    def returncode(self) -> int | None:
        """Return the exit status of an ended process."""
        return self._process.returncode


@pytest.fixture(scope="session")
def looking(processes: None) -> Iterator[Forks]:
    """A process that has imported the locator check."""
    with Forks("dispatcher.start.locator_process") as forks:
        yield forks


@pytest.fixture
def forked_looks(looking: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make locator checks run in forks."""

    def popen(*_: object, env: Mapping[str, str], **__: Any) -> FakePopen:
        return FakePopen(looking, env)

    monkeypatch.setattr(bounded_processes, "subprocess", SimpleNamespace(Popen=popen, PIPE=None))
