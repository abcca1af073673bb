"""Volume errors are classified by errno, path and the code that raised them."""

from __future__ import annotations

import errno
import os
import types
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from cerebro.contract.tasks.failures import FailureKind
from cerebro.data.files.durable import DurableFile
from cerebro.errors import StorageFullError, VolumeError
from cerebro.runtime.volume_errors import (
    AWAY,
    DENIED,
    FULL,
    KNOWN,
    LIMITED,
    error_of_call,
    limits,
    lowered_limit,
    of_volume,
    platform_error,
)
from cerebro.worker.child.task_loop import failure_of

ROOT = Path("/volumes/checkpoints")
numbers = st.sampled_from(sorted(errno.errorcode))
named = {
    *("EIO", "EROFS", "ESTALE", "EACCES", "EPERM", "EMFILE", "ENFILE"),
    *("EFBIG", "ENOSPC", "EDQUOT", "ETIMEDOUT", "ENOTCONN"),
}


def _error(number: int, path: Path | None = None) -> OSError:
    return OSError(number, os.strerror(number), None if path is None else str(path))


def raised(error: BaseException, *, by: str = "user") -> BaseException:
    """Raise and catch `error`, so its traceback starts in user or platform code."""
    folder = Path(platform_error.__code__.co_filename).parents[1] if by == "platform" else Path("/home/ann")
    code = compile("def call(error): raise error", str(folder / "spec.py"), "exec")
    found = types.ModuleType("found")
    exec(code, found.__dict__)
    try:
        found.__dict__["call"](error)
    except BaseException as caught:  # noqa: BLE001 - the test passes any error
        return caught
    raise AssertionError


def test_the_table_has_the_errors_of_volumes() -> None:
    assert {errno.errorcode[number] for number in KNOWN} >= named
    assert not FULL & AWAY
    assert not AWAY & DENIED
    assert errno.ENOENT not in KNOWN, "a file that is missing is no error of its volume"


@given(number=numbers)
def test_each_error_below_a_volume_has_one_meaning(number: int) -> None:
    """The volume is full, unavailable at that path, or not the cause."""
    found = of_volume(_error(number), ROOT)
    kind = StorageFullError if number in FULL else VolumeError if number in KNOWN else type(None)
    assert type(found) is kind
    path = "" if number in LIMITED else str(ROOT)
    assert found is None or (found.path == path and str(ROOT) in str(found))


@given(number=numbers, is_platforms=st.booleans(), is_below=st.booleans(), may_deny=st.booleans())
def test_an_error_is_the_platforms_by_its_code_or_path(
    number: int, *, is_platforms: bool, is_below: bool, may_deny: bool
) -> None:
    """User code's errors on its own paths remain user errors."""
    path = ROOT / "one" if is_below else Path("/home/ann/own.txt")
    error = raised(_error(number, path), by="platform" if is_platforms else "user")
    found = platform_error(error, (ROOT,), may_deny=may_deny)
    is_path = is_below and (may_deny or number not in DENIED)
    assert (found is not None) == (number in KNOWN and (is_platforms or is_path))


@given(number=st.sampled_from(sorted(KNOWN)), links=st.integers(0, 3))
def test_exceptions_of_user_code_do_not_hide_a_volume_error(number: int, links: int) -> None:
    """Libraries and user code may wrap the error."""
    error: BaseException = raised(_error(number, ROOT / "one"), by="platform")
    for _ in range(links):
        outer = RuntimeError("unexpected pos 64 vs 0")
        outer.__cause__ = error
        error = raised(outer)
    failure = failure_of(error, roots=(ROOT,))
    assert failure.kind is (FailureKind.STORAGE_FULL if number in FULL else FailureKind.UNAVAILABLE)
    assert failure.is_of_volume == (number not in LIMITED)
    assert failure.volume.startswith(str(ROOT)) == failure.is_of_volume


@pytest.mark.parametrize("number", sorted(KNOWN))
def test_an_error_on_a_file_of_the_user_is_a_user_error(number: int) -> None:
    failure = failure_of(raised(_error(number, Path("/home/ann/own.txt"))), roots=(ROOT,))
    assert (failure.kind, failure.volume) == (FailureKind.USER_ERROR, "")


@given(number=numbers, is_below=st.booleans(), is_replaced=st.booleans())
def test_preprocessing_has_the_users_errors_in_failed_rows(
    number: int, *, is_below: bool, is_replaced: bool
) -> None:
    """Only an error below the scratch folder is a volume error, and only if user code did not replace it."""
    error: BaseException = raised(_error(number, (ROOT if is_below else Path("/home/ann")) / "one"))
    if is_replaced:
        outer = ValueError("bad picture")
        outer.__context__ = error
        error = raised(outer)
    is_platforms = is_below and not is_replaced and number in KNOWN - DENIED
    assert (error_of_call(error, ROOT) is not None) == is_platforms


def _refuse(*numbers: int) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise _error(numbers[0])

    return call


def _written(path: Path) -> None:
    file = DurableFile(path)
    try:
        file.commit()
    finally:
        file.discard()


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ESTALE, errno.EFBIG, errno.EDQUOT])
@pytest.mark.parametrize("step", ["mkdir", "open", "fsync", "replace"])
def test_each_step_of_a_durable_file_names_the_volume(
    number: int, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write leaves no complete-looking file."""
    owner: object = os if step == "fsync" else Path
    with monkeypatch.context() as patched:
        patched.setattr(owner, step, _refuse(number))
        with pytest.raises((VolumeError, StorageFullError), match=str(tmp_path)):
            _written(tmp_path / "new" / "file")
    assert not (tmp_path / "new" / "file").exists()


def test_a_limit_that_user_code_lowered_is_the_users() -> None:
    """The volume works; the process limit is the cause."""
    before = {number: limit + 1 for number, limit in limits().items()}
    error = VolumeError.at("away", ROOT)
    error.__cause__ = _error(errno.EFBIG)
    assert "RLIMIT_FSIZE" in lowered_limit(error, before)
    assert lowered_limit(error, limits()) == ""
    assert lowered_limit(_error(errno.EIO), before) == ""
