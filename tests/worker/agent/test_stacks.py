"""Stack dumps of several process groups are requested at once, with one deadline."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.worker.child import stacks

SILENT, SLOW, BABBLING, DEAF = range(100, 104)
"""Process groups: no output, a pause between two lines, endless output, no handler for the signal."""


class Clock:
    """A fake clock that advances in `sleep` and writes output."""

    def __init__(self, folder: Path) -> None:
        self.now, self._folder, self._lines = 0.0, folder, {SLOW: {0.05: "first", 0.12: "second"}}
        self.signals: list[tuple[float, int]] = []

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance the clock."""
        before, self.now = self.now, self.now + seconds
        for group, lines in self._lines.items():
            for due, line in lines.items():
                if before < due <= self.now:
                    self._write(group, line)
        self._write(BABBLING, "x")

    def _write(self, group: int, line: str) -> None:
        with (self._folder / str(group)).open("a") as file:
            file.write(f"{line}\n")

    def kill(self, process: int, number: int) -> None:
        """Record a signal."""
        self.signals.append((self.now, process))


def test_stacks_of_all_processes_are_dumped_in_parallel_and_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent process does not delay others, and a short pause does not end a dump."""
    clock = Clock(tmp_path)
    monkeypatch.setattr(stacks, "time", clock)
    monkeypatch.setattr("os.kill", clock.kill)
    monkeypatch.setattr(stacks, "members", lambda group: [group])
    monkeypatch.setattr(stacks, "_is_enabled", lambda process: process != DEAF)
    groups = (SILENT, BABBLING, DEAF, SLOW)
    for group in groups:
        (tmp_path / str(group)).write_text("before\n")
    found = stacks.dump([stacks.DumpTarget(group, tmp_path / str(group)) for group in groups])
    assert clock.signals == [(0.0, SILENT), (0.0, BABBLING), (0.0, SLOW)]
    assert clock.now == pytest.approx(stacks._WAIT_S)
    assert found[0] == found[2] == ""
    assert set(found[1].split()) == {"x"}
    assert found[3] == "first\nsecond"
    clock.now = 0.0
    assert stacks.dump([stacks.DumpTarget(SLOW, tmp_path / str(SLOW))]) == ["first\nsecond"]
    assert clock.now < 0.3
