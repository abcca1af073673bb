"""Rebuilt partitions are compared with the log."""

from __future__ import annotations

import pytest

from cerebro.client.partition_rebuild import _cores, is_same
from cerebro.contract.tasks.results import ShardSet, TaskResult

LOGGED = TaskResult(rows=10, shards=ShardSet(number=4, checksum="sha256:a"), cores=1)


@pytest.mark.parametrize(
    ("logged", "task_result", "expected"),
    [
        (LOGGED, LOGGED, True),
        (LOGGED, LOGGED.model_copy(update={"shards": ShardSet(number=4, checksum="sha256:b")}), False),
        # Another machine cut the rows into other shards, so checksums cannot be compared.
        (LOGGED, LOGGED.model_copy(update={"shards": ShardSet(number=8, checksum="sha256:b")}), None),
        # The log has no shards.
        (TaskResult(rows=10), LOGGED, None),
    ],
)
def test_partitions_are_equal_different_or_incomparable(
    logged: TaskResult, task_result: TaskResult, expected: bool | None
) -> None:
    """If no comparison is possible, the result is None."""
    assert is_same(logged, task_result) is expected


@pytest.mark.parametrize(
    ("logged", "given", "expected"), [(0, "", 3), (2, "", 2), (8, "", 3), (8, "6", 6), (0, "6", 6)]
)
def test_the_rebuild_uses_the_cores_of_the_container(
    monkeypatch: pytest.MonkeyPatch, logged: int, given: str, expected: int
) -> None:
    """At most the container's limit, which can be below the machine's core count."""
    monkeypatch.setenv("CEREBRO_CORES", given)
    monkeypatch.setattr("cerebro.runtime.usage.cores.available", lambda: 3)
    assert _cores(logged) == expected
