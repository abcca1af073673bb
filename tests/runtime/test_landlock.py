"""Landlock: rights that a process drops stay dropped for it and its children."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from cerebro.runtime.isolation import landlock
from cerebro.runtime.isolation.process_exit import fork

needs_landlock = pytest.mark.skipif(
    bool(landlock.why_unavailable()), reason=f"not enforced here: {landlock.why_unavailable()}"
)


def in_a_fork(work: Callable[[], object]) -> int:
    """Run `work` in a fork; return 0 or the errno."""
    child = fork()
    if child == 0:
        status = 255
        with suppress(BaseException):
            try:
                work()
                status = 0
            except OSError as error:
                status = error.errno or 255
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Three folders with a file each: writable, readable, and forbidden."""
    found = tmp_path / "mine", tmp_path / "data", tmp_path / "others"
    for folder in found:
        folder.mkdir()
        (folder / "file").write_text("before")
    return found


@pytest.mark.processes
@needs_landlock
def test_only_allowed_files_can_be_read_and_written(folders: tuple[Path, Path, Path]) -> None:
    """The kernel refuses to read or change forbidden files in any way; allowed files stay usable."""
    mine, data, others = folders
    answers = mine.parent / "answers"

    def tried(acts: Sequence[Callable[[], object]]) -> list[int]:
        """Do the acts in a restricted process; return 0 or the errno of each."""
        with answers.open("wb", buffering=0) as file:  # opened before, so that it stays writable

            def work() -> None:
                landlock.restrict(
                    read=[data, Path("/usr"), Path("/lib"), Path("/etc")],
                    write=[mine],
                    write_files=[Path("/dev")],
                )
                for act in acts:
                    try:
                        act()
                        file.write(bytes([0]))
                    except OSError as error:
                        file.write(bytes([error.errno or 255]))

            assert in_a_fork(work) == 0
        return list(answers.read_bytes())

    allowed: list[Callable[[], object]] = [
        lambda: (mine / "new").write_text("x"),
        lambda: (mine / "folder" / "deep").mkdir(parents=True),
        lambda: (mine / "file").rename(mine / "folder" / "other"),
        lambda: os.truncate(mine / "new", 0),
        (mine / "new").unlink,
        (data / "file").read_text,
        lambda: Path("/dev/null").write_text("x"),
        lambda: list(others.iterdir()),
        lambda: subprocess.run(["true"], check=True),
        lambda: Path("/no/such/file").exists(),
    ]
    assert tried(allowed) == [0] * len(allowed)
    (mine / "file").write_text("before")
    refused: list[Callable[[], object]] = [
        lambda: (data / "new").write_text("x"),
        lambda: (data / "file").write_text("x"),
        (others / "file").read_text,
        lambda: (others / "file").write_text("x"),
        lambda: os.truncate(others / "file", 0),
        (others / "file").unlink,
        (others / "folder").mkdir,
        lambda: (others / "link").symlink_to("/"),
        lambda: (mine / "file").rename(others / "file"),
        lambda: os.link(others / "file", mine / "linked"),
        lambda: Path("/dev/made").write_text("x"),
    ]
    found = tried(refused)
    assert len(found) == len(refused)
    assert set(found) <= {errno.EACCES, errno.EXDEV}
    assert [(folder / "file").read_text() for folder in folders] == ["before"] * 3
    assert [path.name for path in others.iterdir()] == ["file"]


@pytest.mark.processes
@needs_landlock
def test_child_processes_inherit_the_restriction(
    folders: tuple[Path, Path, Path],
) -> None:
    """A second, wider ruleset adds no rights, and child processes inherit the restriction."""
    mine, _, others = folders

    def work() -> None:
        landlock.restrict(read=[Path("/")], write=[mine, Path("/dev")])
        landlock.restrict(read=[Path("/")], write=[mine, others, Path("/dev")])
        done = subprocess.run(["sh", "-c", f"echo x > {others}/file"], stderr=subprocess.DEVNULL, check=False)
        if done.returncode == 0:
            raise OSError(254, "the shell wrote")
        (others / "file").write_text("x")

    assert in_a_fork(work) == errno.EACCES
    assert (others / "file").read_text() == "before"


@pytest.mark.processes
@needs_landlock
def test_a_trial_confirms_that_landlock_is_enforced() -> None:
    """The check restricts a child process and sees that the kernel enforces it."""
    assert landlock.why_not_enforced() == ""
    assert landlock.abi_version() >= 1


@pytest.mark.parametrize(
    ("error", "named"),
    [(errno.ENOSYS, "no Landlock"), (errno.EOPNOTSUPP, "lsm="), (errno.EPERM, "seccomp")],
)
def test_the_reason_for_missing_landlock_is_stated(
    monkeypatch: pytest.MonkeyPatch, error: int, named: str
) -> None:
    """Three causes: the kernel is too old, Landlock is disabled, or a seccomp profile refuses it."""

    class Library:
        @staticmethod
        def syscall(*_: object) -> int:
            ctypes.set_errno(error)
            return -1

    monkeypatch.setattr(landlock, "_library", Library)
    assert named in landlock.why_unavailable()
    assert landlock.why_not_enforced() == landlock.why_unavailable()
    assert landlock.abi_version() == 0
