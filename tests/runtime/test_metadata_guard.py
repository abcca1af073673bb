"""The supervisor of metadata changes, with real processes."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cerebro.runtime.isolation import metadata_filter, metadata_guard
from cerebro.runtime.isolation.metadata_guard import Supervisor
from cerebro.runtime.isolation.process_exit import fork

_WHY = metadata_guard.why_unavailable()
pytestmark = pytest.mark.skipif(bool(_WHY), reason=f"not here: {_WHY}")

OTHER_STATUS = 250


def held(folder: Path, act: Callable[[], object]) -> int:
    """Run `act` in a process restricted to `folder`; return its errno, or 0."""
    supervisor = Supervisor()
    child = fork()
    if child == 0:
        status = OTHER_STATUS
        try:
            metadata_guard.enter(supervisor.door, [folder.resolve()])
            supervisor.door.close()
            act()
            status = 0
        except OSError as error:
            status = error.errno or OTHER_STATUS
        finally:
            os._exit(status)
    try:
        return os.waitstatus_to_exitcode(supervisor.attend(child))
    finally:
        supervisor.close()


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A writable folder and a foreign one, each with a file."""
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
        (tmp_path / name / "file").chmod(0o644)
    (tmp_path / "mine" / "link").symlink_to(tmp_path / "theirs" / "file")
    (tmp_path / "theirs" / "link").symlink_to(tmp_path / "mine" / "file")
    return tmp_path / "mine"


def _by_descriptor(path: Path, act: Callable[[int], object]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    act(descriptor)


def _in_folder(path: Path, act: Callable[[int], object]) -> None:
    _by_descriptor(path.parent, act)


def _here(path: Path) -> None:
    os.chdir(path.parent)
    os.chmod(path.name, 0o600)  # noqa: PTH101 - by a relative path


def _in_thread(path: Path) -> None:
    errors: list[OSError] = []

    def act() -> None:
        try:
            path.chmod(0o600)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _through_a_link(path: Path) -> None:
    link = path.parent.parent / "mine" / "to"
    link.symlink_to(path)
    link.chmod(0o600)


def _started(*command: str) -> None:
    if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode:
        raise PermissionError(errno.EACCES, "the program was refused")


CHANGES: dict[str, Callable[[Path], object]] = {
    "chmod": lambda path: path.chmod(0o600),
    "relative": _here,
    "in a folder": lambda path: _in_folder(path, lambda folder: os.chmod(path.name, 0o600, dir_fd=folder)),
    "fchmod": lambda path: _by_descriptor(path, lambda file: os.fchmod(file, 0o600)),
    "by /proc": lambda path: _by_descriptor(path, lambda file: Path(f"/proc/self/fd/{file}").chmod(0o600)),
    "chown": lambda path: os.chown(path, os.getuid(), os.getgid()),
    "lchown": lambda path: os.chown(path, os.getuid(), os.getgid(), follow_symlinks=False),
    "fchown": lambda path: _by_descriptor(path, lambda file: os.fchown(file, -1, -1)),
    "utime": os.utime,
    "times": lambda path: os.utime(path, ns=(1, 2)),
    "ltimes": lambda path: os.utime(path, ns=(1, 2), follow_symlinks=False),
    "futime": lambda path: _by_descriptor(path, lambda file: os.utime(file, (1, 2))),
    "setxattr": lambda path: os.setxattr(path, "user.a", b"value"),
    "fsetxattr": lambda path: _by_descriptor(path, lambda file: os.setxattr(file, "user.a", b"value")),
    "lsetxattr": lambda path: os.setxattr(path, "user.a", b"value", follow_symlinks=False),
    "in a thread": _in_thread,
    "in a program": lambda path: _started("chmod", "600", str(path)),
    "through a link": _through_a_link,
    "of the folder": lambda path: path.parent.chmod(0o700),
}


def _facts(path: Path) -> list[object]:
    found = [path.stat(), path.parent.stat()]
    facts = [(one.st_mode, one.st_uid, one.st_gid, one.st_mtime_ns) for one in found]
    return [*facts, os.listxattr(path), path.parent.stat().st_mode]


@pytest.mark.processes
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=name, marks=[] if number % 3 == 0 else pytest.mark.slow)
        for number, (name, change) in enumerate(CHANGES.items())
    ],
)
def test_only_metadata_of_own_files_can_be_changed(mine: Path, change: Callable[[Path], object]) -> None:
    theirs = mine.parent / "theirs" / "file"
    before = _facts(theirs)
    assert held(mine, lambda: change(mine / "file")) == 0
    (mine / "to").unlink(missing_ok=True)
    assert held(mine, lambda: change(theirs)) == errno.EACCES
    (mine / "to").unlink(missing_ok=True)
    assert _facts(theirs) == before


@pytest.mark.processes
def test_the_guard_applies_the_requested_changes(mine: Path) -> None:
    """Mode, times and attributes, set directly, by `shutil` and by `cp`."""
    file = mine / "file"

    def work() -> None:
        file.chmod(0o4751)
        os.utime(file, ns=(1_000_000_001, 2_000_000_002))
        os.setxattr(file, "user.a", b"\0value")
        os.setxattr(file, "user.b", b"x")
        os.removexattr(file, "user.b")
        shutil.copy2(file, mine / "copy")
        subprocess.run(["cp", "-a", str(file), str(mine / "program")], check=True)

    assert held(mine, work) == 0
    for name in ("file", "copy", "program"):
        facts = (mine / name).stat()
        assert facts.st_mode & 0o7777 == 0o4751, name
        assert facts.st_mtime_ns == 2_000_000_002, name
        assert os.listxattr(mine / name) == ["user.a"], name
    assert os.getxattr(file, "user.a") == b"\0value"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda mine: (mine / "none").chmod(0o600), errno.ENOENT),
        (lambda mine: os.chmod("", 0o600), errno.ENOENT),  # noqa: PTH101 - no path
        (lambda mine: os.fchmod(999, 0o600), errno.EBADF),
        (lambda mine: os.removexattr(mine / "file", "user.none"), errno.ENODATA),
        (lambda mine: (mine / ("x" * 300)).chmod(0o600), errno.ENAMETOOLONG),
        (lambda mine: (mine / "link").chmod(0o600), errno.EACCES),
        (lambda mine: (mine / ".." / "theirs" / "file").chmod(0o600), errno.EACCES),
        (lambda mine: Path("/").chmod(0o755), errno.EACCES),
        (lambda mine: (mine.parent / "theirs" / "link").chmod(0o600), 0),
        (lambda mine: os.fchmod(os.pipe()[0], 0o600), 0),
        (lambda mine: os.fchmod(os.memfd_create("x"), 0o600), 0),
    ],
)
def test_impossible_changes_fail_with_the_usual_error(
    mine: Path, act: Callable[[Path], object], error: int
) -> None:
    """The target of a link decides. Pipes and memory files are always allowed."""
    assert held(mine, lambda: act(mine)) == error


@pytest.mark.processes
def test_calls_that_bypass_the_guard_are_blocked(mine: Path) -> None:
    """io_uring could set attributes, and flags could lock a file."""

    def call(number: int, *arguments: object) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if library.syscall(number, *arguments) < 0:
            raise OSError(ctypes.get_errno(), "")

    for number in metadata_filter.ABSENT:
        assert held(mine, lambda number=number: call(number, 0, 0, 0, 0, 0, 0)) == errno.ENOSYS  # type: ignore[misc]
    flags = 0x40086602
    descriptor = os.open(mine / "file", os.O_RDONLY)
    ioctl = {"x86_64": 16, "aarch64": 29}[platform.machine()]
    try:
        assert (
            held(mine, lambda: call(ioctl, descriptor, flags, ctypes.byref(ctypes.c_long()))) == errno.EPERM
        )
        assert held(mine, lambda: os.get_blocking(descriptor)) == 0
    finally:
        os.close(descriptor)


@pytest.mark.processes
def test_a_path_swapped_during_the_call_is_checked_once(mine: Path) -> None:
    """The supervisor checks and changes one descriptor, so a thread that swaps the path gains nothing."""
    theirs, own_file = mine.parent / "theirs" / "file", mine / "file"
    own_file.chmod(0o640)
    paths = [os.fsencode(own_file), os.fsencode(theirs)]
    size = max(map(len, paths)) + 1

    def work() -> None:
        buffer = ctypes.create_string_buffer(paths[0], size)
        has_ended = threading.Event()

        def swap() -> None:
            while not has_ended.is_set():
                for path in paths:
                    buffer.value = path

        thread = threading.Thread(target=swap)
        thread.start()
        library = ctypes.CDLL(None)
        for _ in range(300):
            library.chmod(buffer, 0o600)
        has_ended.set()
        thread.join()

    assert held(mine, work) == 0
    assert (theirs.stat().st_mode & 0o777, own_file.stat().st_mode & 0o777) == (0o644, 0o600)


@pytest.mark.processes
def test_a_process_that_never_enters_is_waited_for(tmp_path: Path) -> None:
    """One supervisor attends one child after another."""
    supervisor = Supervisor()
    for status in (3, 4):
        child = fork()
        if child == 0:
            os._exit(status)
        assert os.waitstatus_to_exitcode(supervisor.attend(child)) == status
    supervisor.close()


def test_the_filter_is_the_same_length_of_instructions_on_all_machines() -> None:
    """Each system call number of each processor is in its filter."""
    for machine in metadata_filter.MACHINES:
        program = metadata_filter.program(machine)
        assert len(program) % 8 == 0
        for number in (*metadata_filter.NUMBERS[machine].values(), *metadata_filter.ABSENT):
            assert number.to_bytes(4, sys.byteorder) in program
        assert set(metadata_filter.NUMBERS[machine]) <= set(metadata_filter.CALLS)
