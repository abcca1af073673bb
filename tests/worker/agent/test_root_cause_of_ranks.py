"""The root cause among several failed ranks, and the rank that all others wait for."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.worker.health.root_cause import RankEnd, decisive, is_lost_peer, who_is_behind
from tests.worker.agent.fake_handler import LOST_PEER

LOST = Failure(kind=FailureKind.USER_ERROR, message=f"RuntimeError: {LOST_PEER}")
OWN = Failure(kind=FailureKind.USER_ERROR, message="ValueError: boom")
MEMORY = Failure(kind=FailureKind.OUT_OF_MEMORY, message=f"out of memory after {LOST_PEER}")

ends = st.lists(
    st.builds(
        lambda at, failure: (at, failure), st.integers(0, 9), st.sampled_from([None, LOST, OWN, MEMORY])
    ),
    min_size=1,
    max_size=8,
)


@given(ends, st.randoms(use_true_random=False))
def test_the_root_cause_does_not_depend_on_the_order_of_reports(
    reports: Sequence[tuple[int, Failure | None]], chance: random.Random
) -> None:
    """It is the earliest failure that is not a lost peer."""
    found = [RankEnd(rank=rank, at=at, failure=failure) for rank, (at, failure) in enumerate(reports)]
    heard = list(found)
    chance.shuffle(heard)
    verdict = decisive(heard)
    assert verdict == decisive(found)
    causes = [end for end in found if not end.is_lost_peer]
    assert verdict.at == min(end.at for end in causes or found)
    assert verdict.is_lost_peer == (not causes)


@pytest.mark.parametrize(
    "text",
    [
        f"RuntimeError: {LOST_PEER}",
        "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
        "[127.0.0.1]:56966: Connection reset by peer. This is typically caused by a remote worker hanging or bugs",
        "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a network",
    ],
)
def test_collateral_failures_are_recognised_by_their_messages(text: str) -> None:
    """User code may wrap the error."""
    assert is_lost_peer(Failure(kind=FailureKind.USER_ERROR, message=text))
    wrapped = Failure(
        kind=FailureKind.USER_ERROR, message="TrainError: step failed", traceback=f"x\n{text}\ny"
    )
    assert is_lost_peer(wrapped)


@pytest.mark.parametrize(
    ("batches", "operations", "done", "rank", "text"),
    [
        ((18, 18, 17), (), (), 2, "is at batch 17, the others at 18"),
        ((18, 17, 18), (4, 9, 9), (), 1, "is at batch 17, the others at 18"),
        ((3, 3), (), (), None, "all ranks are at batch 3"),
        ((3, 3), (8, 8), (), None, "all ranks are at batch 3"),
        ((3, 3), (8, 0), (), None, "all ranks are at batch 3"),
        (
            (3, 3),
            (8, 7),
            (),
            1,
            "is behind within batch 3: the others wait for it in the next operation of all ranks",
        ),
        (
            (3, 3, 3),
            (7, 8, 7),
            (),
            None,
            "ranks 0, 2 are behind within batch 3: the others wait for them in the next operation of all ranks",
        ),
        ((2, 2, 5), (), (), None, "ranks 0, 1 are at batch 2, the others at 5"),
        ((9, 9), (5, 5), (0,), 1, "is at batch 9, the others are done"),
        ((7, 9, 8), (), (0,), 2, "is at batch 8, the others are done"),
        ((), (), (), None, "all ranks are at batch 0"),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named(
    batches: tuple[int, ...], operations: tuple[int, ...], done: tuple[int, ...], rank: int | None, text: str
) -> None:
    """Finished ranks wait for no other rank."""
    assert who_is_behind(batches, operations, done) == (rank, text)
