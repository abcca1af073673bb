"""Messages between an agent, its child, the child's task processes and the other workers of a gang.

A message is a JSON object on one line: its fields, and the name of its class as `type`. A `Protocol` lists the
messages that one end accepts. User code shares the child's process and may write to the socket, so each received
message is validated.

Agents and children import the classes; `cerebro.worker.protocol.channel` carries them. Nothing here sends or acts.
"""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from cerebro.contract.base import Contract
from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.checkpoints import Savepoint
from cerebro.contract.tasks.failures import Failure
from cerebro.contract.tasks.results import TaskResult

# Saved before user code is imported, which may replace them.
_dumps, _loads = json.dumps, json.loads

_MAX_NAME = 40


class Ranks(Contract):
    """A rank's view of its rank group.

    Attributes:
        rank: number of this process, from 0.
        size: number of ranks.
        folder: private rendezvous folder of the attempt; for a gang, of this worker's ranks only.
        address: this worker's address for the gang; "" if all ranks are on this worker.
    """

    rank: NonNegativeInt
    size: PositiveInt
    folder: Path
    address: str = ""


class Depth(IntEnum):
    """Part of the user code that the parent of task processes runs before it forks; they run the rest."""

    NOTHING = 0
    IMPORTED = 1
    INITIALISED = 2


# --- to a child ------------------------------------------------------------------------------------


class Run(Contract):
    """Run a task. The child answers with `Done`, `Failed` or `Preempted`.

    Attributes:
        codes: encoded user code that the child lacks, by hash.
        log: file for the output of user code.
        received_at: monotonic time when the agent received the task; all processes share the clock.
        ranks: rank group of the task, if several processes train together.
        depth: set by a child that hands the task to its next process.
    """

    body: TaskBody
    attempt: int
    codes: dict[str, str]
    log: Path
    received_at: FiniteFloat
    ranks: Ranks | None = None
    depth: Depth = Depth.INITIALISED


class Preload(Contract):
    """Prepare for an expected task. A task process forwards it to its parent, which forks the next process."""

    body: TaskBody


class FreeMemory(Contract):
    """Free large objects that can be rebuilt."""


class Preempt(Contract):
    """Leave the task at the next batch or row, after a savepoint if there is time.

    Attributes:
        reason: for people.
        grace_s: seconds until the process is killed; for one member, the seconds it has for a savepoint.
        member: number of the only member of a fused group that leaves; `None` for the whole task.
    """

    reason: str
    grace_s: float
    member: NonNegativeInt | None = None


class Rendezvous(Contract):
    """Rendezvous address of a gang. Rank 0 reports it; the agent forwards it to other ranks."""

    address: str


class Forward(Contract):
    """Send the agent this answer of an earlier task process, which has ended."""

    answer: Done | Failed | Preempted | GroupEnded


class StartRank(Contract):
    """Start a rank on another worker, which fetches the task and user code from the store."""

    ranks: Ranks


# --- from a child ----------------------------------------------------------------------------------


class Ready(Contract):
    """The child has finished its imports and listens."""


class Progress(Contract):
    """Progress of the running task, or of one member of a fused group; see `LivePoint`."""

    member: NonNegativeInt = 0
    rows: NonNegativeInt
    rows_failed: NonNegativeInt
    total_rows: NonNegativeInt
    batch: NonNegativeInt
    start_s: NonNegativeFloat
    values: dict[str, float]


class Saved(Contract):
    """A savepoint of the task, or of one member of a fused group, is complete."""

    savepoint: Savepoint
    member: NonNegativeInt = 0


class Done(Contract):
    """The task has a result."""

    result: TaskResult


class Failed(Contract):
    """The task has failed.

    Attributes:
        failed_at: monotonic time on the child's machine, to find the first rank that failed.
    """

    failure: Failure
    failed_at: FiniteFloat


class Preempted(Contract):
    """The task was left between two batches."""


class MemberEnded(Contract):
    """A member of a fused group has ended; the others continue."""

    member: NonNegativeInt
    answer: Done | Failed | Preempted


class GroupEnded(Contract):
    """All members of a fused group have ended."""


# --- from another worker of a gang -----------------------------------------------------------------


class RankPosition(Contract):
    """Position of a rank on another worker; see `RankPage`."""

    batch: NonNegativeInt
    operations: NonNegativeInt


class WorkerLeaves(Contract):
    """Another worker of the gang shuts down. Attributes as in `Preempt`."""

    reason: str
    grace_s: float


# --- between a child and its task processes --------------------------------------------------------


class ServeAgent(Contract):
    """Start serving the agent: the previous task process has finished.

    Attributes:
        unread: text that the previous process read from the agent's channel.
        codes: encoded user code of the previous task, by hash.
    """

    unread: str
    codes: dict[str, str]


class TaskFinished(Contract):
    """A task process has run its task and exits.

    Attributes:
        unread: text for the next process.
        log: log of the task.
        codes: encoded user code of the task, by hash.
        must_exit_first: True if the next task has to wait until this process has ended.
    """

    unread: str
    log: Path
    codes: dict[str, str]
    must_exit_first: bool


class NeedsOtherParent(Contract):
    """The next task has other user code or another sandbox, so this child cannot run it."""

    unread: str


class AgentGone(Contract):
    """The agent has closed the channel."""


Answer = Done | Failed | Preempted | GroupEnded
ToChild = Run | Preload | FreeMemory | Preempt | Rendezvous | Forward
FromChild = Ready | Progress | Saved | Rendezvous | MemberEnded | Done | Failed | Preempted | GroupEnded
ToMember = StartRank | Rendezvous
FromMember = Ready | Done | Failed | Preempted | RankPosition | WorkerLeaves
ToTaskProcess = Preload | ServeAgent
FromTaskProcess = Preload | TaskFinished | NeedsOtherParent | AgentGone

M = TypeVar("M", bound=Contract)


class MessageError(ValueError):
    """A message is unknown to this end or malformed. The text names the message."""


class NoMessageError(MessageError):
    """A line is not a JSON object with a type."""


class Protocol(Generic[M]):
    """The messages that one end of a channel accepts.

    Args:
        types: classes of the messages.
    """

    def __init__(self, *types: type[M]) -> None:
        self.types = {each.__name__: each for each in types}

    def decode(self, line: bytes) -> M:
        """Return the message of a line.

        Raises:
            NoMessageError: it is not a JSON object with a type.
            MessageError: its message is unknown or malformed.
        """
        if not line.lstrip().startswith(b"{"):  # cheaper than parsing a flood of lines
            raise NoMessageError("not a JSON object")
        try:
            fields = _loads(line)
        except (ValueError, RecursionError) as error:
            raise NoMessageError("not a JSON object") from error
        name = fields.pop("type", None)
        if not isinstance(name, str):
            raise NoMessageError("a JSON object without a type")
        known = self.types.get(name)
        if known is None:
            raise MessageError(f"unknown message {name[:_MAX_NAME]!r}")
        try:
            return known.model_validate(fields)
        except (ValidationError, RecursionError) as error:
            raise MessageError(f"malformed message {name!r}: {_first_fault(error)}") from error


def encode(message: Contract) -> bytes:
    """Return a message's line, without its end."""
    fields: dict[str, Any] = {"type": type(message).__name__, **message.model_dump(mode="json")}
    return _dumps(fields).encode()


def _first_fault(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


TO_CHILD = Protocol[ToChild](Run, Preload, FreeMemory, Preempt, Rendezvous, Forward)
FROM_CHILD = Protocol[FromChild](
    Ready, Progress, Saved, Rendezvous, MemberEnded, Done, Failed, Preempted, GroupEnded
)
TO_MEMBER = Protocol[ToMember](StartRank, Rendezvous)
FROM_MEMBER = Protocol[FromMember](Ready, Done, Failed, Preempted, RankPosition, WorkerLeaves)
TO_TASK_PROCESS = Protocol[ToTaskProcess](Preload, ServeAgent)
FROM_TASK_PROCESS = Protocol[FromTaskProcess](Preload, TaskFinished, NeedsOtherParent, AgentGone)
