"""Partitions made again are compared with what the log tells of those that were trained on."""

from __future__ import annotations

import pytest

from cerebro.contract.tasks import TaskResult
from cerebro.remaking import is_same

LOGGED = TaskResult(rows=10, shards=4, checksum="sha256:a", cores=1)


@pytest.mark.parametrize(
    ("logged", "made", "expected"),
    [
        (LOGGED, LOGGED, True),
        (LOGGED, LOGGED.model_copy(update={"checksum": "sha256:b"}), False),
        # Another machine has cut the rows otherwise: then checksums say nothing of the rows.
        (LOGGED, LOGGED.model_copy(update={"checksum": "sha256:b", "shards": 8}), None),
        # The log is of an older version.
        (TaskResult(rows=10), LOGGED, None),
    ],
)
def test_a_partition_is_the_same_another_one_or_not_known(
    logged: TaskResult, made: TaskResult, expected: bool | None
) -> None:
    """Nothing is claimed that was not compared."""
    assert is_same(logged, made) is expected
