"""Partitions made again are compared with what the log tells of those that were trained on."""

from __future__ import annotations

import pytest

from cerebro.client.partition_rebuild import _cores, is_same
from cerebro.contract.tasks import TaskResult

LOGGED = TaskResult(rows=10, shards=4, checksum="sha256:a", cores=1)


@pytest.mark.parametrize(
    ("logged", "made", "expected"),
    [
        (LOGGED, LOGGED, True),
        (LOGGED, LOGGED.model_copy(update={"checksum": "sha256:b"}), False),
        # Another machine has cut the rows otherwise: then checksums say nothing of the rows.
        (LOGGED, LOGGED.model_copy(update={"checksum": "sha256:b", "shards": 8}), None),
        # The log does not tell the shards.
        (TaskResult(rows=10), LOGGED, None),
    ],
)
def test_a_partition_is_the_same_another_one_or_not_known(
    logged: TaskResult, made: TaskResult, expected: bool | None
) -> None:
    """Nothing is claimed that was not compared."""
    assert is_same(logged, made) is expected


@pytest.mark.parametrize(
    ("logged", "given", "expected"), [(0, "", 3), (2, "", 2), (8, "", 3), (8, "6", 6), (0, "6", 6)]
)
def test_as_many_cores_are_used_as_this_process_may_keep_busy(
    monkeypatch: pytest.MonkeyPatch, logged: int, given: str, expected: int
) -> None:
    """Not more than a container's limit, which the machine's number of cores does not tell."""
    monkeypatch.setenv("CEREBRO_CORES", given)
    monkeypatch.setattr("cerebro.runtime.usage.cores.available", lambda: 3)
    assert _cores(logged) == expected
