"""Find the root cause among the rank failures of an attempt. Pure.

`worker.agent.processes.group` calls it when ranks of one attempt have failed. A rank that fails or dies takes the
others with it: they report a lost connection, often before the agent notices the first. So a lost peer is a collateral
failure unless all ranks report one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from cerebro.contract.tasks.failures import Failure

_LOST_PEER = re.compile(
    # gloo: pair.cc. It shows the place in its own source, so user code's connections are not meant.
    r"gloo\b.*(Connection (closed|reset|refused)|Broken pipe|connectFullMesh|Socket closed|Read error|Write error)"
    r"|Connection closed by peer \[|Connection reset by peer\. This is typically caused by a remote worker"
    # NCCL, and torch's ProcessGroupNCCL.
    r"|ncclRemoteError|remote process exited or there was a network error|NCCL communicator was aborted"
    # torch's stores, while the ranks meet.
    r"|torch\.distributed\.Dist(Network|Store)Error",
)


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """A rank's end without a result.

    Attributes:
        at: monotonic time of its failure or disappearance.
        failure: its report; `None` if its process died silently.
    """

    rank: int
    at: float
    failure: Failure | None

    @property
    def is_lost_peer(self) -> bool:
        """True if it reports only the loss of another rank."""
        return self.failure is not None and is_lost_peer(self.failure)


def is_lost_peer(failure: Failure) -> bool:
    """True if a rank only lost its connection to another, even if user code wrapped that error."""
    texts = (failure.message, failure.traceback)
    return failure.kind.traits.may_be_lost_peer and any(_LOST_PEER.search(text) for text in texts)


def decisive(ends: Iterable[RankEnd]) -> RankEnd:
    """Return the root cause: the earliest end other than a lost peer, in any order of arrival.

    Raises:
        ValueError: `ends` has no items.
    """
    return min(ends, key=lambda end: (end.is_lost_peer, end.at, end.rank))


def who_is_behind(
    batches: Sequence[int], operations: Sequence[int] = (), done: Collection[int] = ()
) -> tuple[int | None, str]:
    """Find the rank that blocks the others, if known, and describe the positions for people.

    Args:
        batches: number of batches begun, by rank.
        operations: number of collective operations begun, by rank; 0 if unknown.
        done: ranks that have finished.
    """
    waiting = [rank for rank in range(len(batches)) if rank not in done]
    behind = _least(waiting, batches)
    other_batches = [batch for rank, batch in enumerate(batches) if rank not in behind]
    least = batches[behind[0]] if behind else 0
    within = [] if other_batches or not operations or not all(operations) else _least(waiting, operations)
    if done:
        where = f"at batch {least}, the others are done"
    elif other_batches:
        where = f"at batch {least}, the others at {max(other_batches)}"
    elif 0 < len(within) < len(waiting):
        behind = within
        where = f"behind within batch {least}: the others wait for it in the next operation of all ranks"
    else:
        return None, f"all ranks are at batch {least}"
    if len(behind) == 1:
        return behind[0], f"is {where}"
    return None, f"ranks {', '.join(map(str, behind))} are {where.replace('for it', 'for them')}"


def _least(ranks: Iterable[int], values: Sequence[int]) -> list[int]:
    found = list(ranks)
    least = min((values[rank] for rank in found), default=0)
    return [rank for rank in found if values[rank] == least]
