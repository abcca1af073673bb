"""A multi-rank sub-epoch resumed from a savepoint ends bit-identical to an uninterrupted one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.contract.parallel_plans import ParallelPlan
from tests.techniques.cases import Case, SubEpoch, attempt
from tests.techniques.ranks import Ranks


@pytest.mark.parametrize("technique", ["ddp", "fsdp"])
@pytest.mark.parametrize("average", [False, True])
def test_a_multi_rank_sub_epoch_resumes_from_a_savepoint(
    technique: str, average: bool, partition: Path, tmp_path: Path, ranks: Ranks
) -> None:
    """Covers weights, optimizer, accumulated gradients, averages, metric sums and each rank's random state."""
    case = Case(batch_size=9, average=average, accumulate=1 if average else 2, dropout=0.3)
    parallel_plan = ParallelPlan(technique=technique, size=2)

    def sub_epoch(name: str) -> SubEpoch:
        return SubEpoch(
            case=case,
            parallel_plan=parallel_plan,
            number=0,
            partition=partition,
            root=tmp_path,
            read=None,
            written=name,
        )

    whole, metrics = attempt(sub_epoch("whole"), ranks)
    stopped, _ = attempt(sub_epoch("stopped"), ranks, stop=2)
    again, _ = attempt(sub_epoch("again"), ranks, stop=3, savepoint=stopped)
    ended, same = attempt(sub_epoch("ended"), ranks, savepoint=again)
    assert whole is not None
    assert ended is not None
    assert ended.checksum == whole.checksum
    assert same == metrics
