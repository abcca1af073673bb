"""The result of `ETLSpec.fit` is stored once and verified when read."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import numpy as np
import pytest

from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import DataError, SpecError, VolumeError
from cerebro.usercode import fitted
from cerebro.worker.child.task_loop import failure_of


class Vocabulary:
    """A user-defined class."""

    def __init__(self, words: dict[str, int]) -> None:
        self.words = words


def test_a_fitted_value_is_restored(tmp_path: Path) -> None:
    """Any serialisable type works, and each process restores its own object."""
    value = {"mean": np.arange(3.0), "words": Vocabulary({"a": 0})}
    path = tmp_path / "datasets" / "d" / "fitted" / "etl-1-a2.pickle"
    reference = fitted.write_fitted(path, fitted.pack_fitted(value), tmp_path)
    assert reference.name == "datasets/d/fitted/etl-1-a2.pickle"
    found = fitted.restore_fitted(fitted.read_fitted(tmp_path / reference.name, reference))
    assert found["mean"].tolist() == [0, 1, 2]
    assert found["words"].words == {"a": 0}


def test_a_value_that_cannot_be_stored_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the type or size, and the remedy."""
    with pytest.raises(SpecError, match=r"ETLSpec.fit, a lock, cannot be stored: .* Return numbers"):
        fitted.pack_fitted(threading.Lock())
    monkeypatch.setattr(fitted, "MAX_FITTED_BYTES", 1 << 20)
    with pytest.raises(SpecError, match="takes 2 MiB, at most 1: keep only the necessary part"):
        fitted.pack_fitted(bytes(2 << 20))
    with pytest.raises(SpecError, match=r"the result of ETLSpec.fit cannot be restored"):
        fitted.restore_fitted(b"no pickle")


def test_damage_is_noticed(tmp_path: Path) -> None:
    """A new fit could not match partitions made with the old result, so damage is an error."""
    path = tmp_path / "datasets" / "d" / "fitted" / "x.pickle"
    reference = fitted.write_fitted(path, fitted.pack_fitted([1, 2]), tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match=r"x.pickle, is damaged: it has checksum"):
        fitted.read_fitted(path, reference)
    path.unlink()
    with pytest.raises(DataError, match=r"cannot be read \(No such file or directory\). Restore it"):
        fitted.read_fitted(path, reference)


def test_a_volume_that_does_not_answer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is retryable because a later attempt may be able to read the file."""
    path = tmp_path / "datasets" / "d" / "fitted" / "x.pickle"
    reference = fitted.write_fitted(path, fitted.pack_fitted([1, 2]), tmp_path)

    def stale(self: Path) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "read_bytes", stale)
    with pytest.raises(VolumeError, match=r"cannot be read now \(Stale file handle\)") as caught:
        fitted.read_fitted(path, reference)
    assert failure_of(caught.value).kind is FailureKind.UNAVAILABLE
