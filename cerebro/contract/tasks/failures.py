"""Failures of tasks and runs: their kinds, with how Cerebro treats each, and their texts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field

from cerebro.contract.base import Contract
from cerebro.contract.failure_rules import MatchedRule
from cerebro.contract.parallel_plans import MemoryKind
from cerebro.contract.texts import cleaned, first_line

MAX_MESSAGE, MAX_TRACEBACK = 8_000, 20_000
"""Maximum characters of a failure's message and traceback."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureTraits:
    """How Cerebro treats failures of one kind.

    Attributes:
        retry: the task's next attempt. `free`: the failure does not count. `counted`: until `max_attempts` are used up.
            `elsewhere`: on other workers, up to `MAX_DEVICE_FAILURES`. `no`: none. `Task.fail` has exceptions: an
            idle hang, lack of memory, an unusable volume or a lost worker.
        fails_run: True if it ends the whole run, because no other model could escape it.
        savepoint: effect on the sub-epoch's savepoint. `discard`: always. The others apply to an attempt that
            continued from it. `restart`: discard it, and repeat the sub-epoch from its beginning.
            `discard_if_repeated`: discard it after `MAX_DEATHS` attempts.
        plan: effect on the parallel plan. `rule_out`: the plan is the cause. `doubt`: the plan, user code or chance is.
        uses_failure_rules: True if the task's own work causes it, so failure rules apply.
        keeps_processes: True if the processes stay usable once all ranks have failed this way.
        is_unexplained: True if it says how the attempt ended, but not why; stray messages may explain it.
        may_be_worker: True if it is evidence about the worker.
        may_be_lost_peer: True if a lost connection to another rank may appear as this kind.
        may_be_kernel_kill: True if a process that the kernel killed for memory may appear as this kind.
    """

    retry: Literal["free", "counted", "elsewhere", "no"]
    fails_run: bool
    savepoint: Literal["keep", "discard", "restart", "discard_if_repeated"]
    plan: Literal["keep", "doubt", "rule_out"]
    uses_failure_rules: bool
    keeps_processes: bool
    is_unexplained: bool
    may_be_worker: bool
    may_be_lost_peer: bool
    may_be_kernel_kill: bool


class FailureKind(StrEnum):
    """Cause of an attempt without a result, with its traits.

    `cerebro.worker.child.task_loop` and `cerebro.worker.agent.execution` give exceptions their kind.
    """

    traits: FailureTraits

    def __new__(cls, value: str, traits: FailureTraits) -> Self:
        """Create a member; its value is the text alone."""
        kind = str.__new__(cls, value)
        kind._value_, kind.traits = value, traits
        return kind

    # fmt: off
    # User code raised; with the same seed it raises again. Tried again elsewhere once if a device may be the cause.
    USER_ERROR = "user_error", FailureTraits(
        retry="no", fails_run=False, savepoint="restart", plan="doubt",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=True, may_be_kernel_kill=True,
    )

    # A metric is NaN or infinite.
    NON_FINITE = "non_finite", FailureTraits(
        retry="no", fails_run=False, savepoint="discard", plan="keep",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # No batch within the limit. Tried once more if the process was idle.
    HANG = "hang", FailureTraits(
        retry="no", fails_run=False, savepoint="discard_if_repeated", plan="doubt",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=True,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # The child process died: signal, exit, segmentation fault.
    CRASH = "crash", FailureTraits(
        retry="counted", fails_run=False, savepoint="discard_if_repeated", plan="doubt",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=True,
        may_be_worker=True, may_be_lost_peer=True, may_be_kernel_kill=True,
    )

    # The kernel killed the child for memory, or the GPU ran out.
    OUT_OF_MEMORY = "out_of_memory", FailureTraits(
        retry="counted", fails_run=False, savepoint="discard_if_repeated", plan="rule_out",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # The input checkpoint is missing or corrupt: the sub-epoch before is trained again.
    CHECKPOINT = "checkpoint", FailureTraits(
        retry="free", fails_run=False, savepoint="discard", plan="keep",
        uses_failure_rules=False, keeps_processes=True, is_unexplained=False,
        may_be_worker=False, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # A volume is full: the run pauses.
    STORAGE_FULL = "storage_full", FailureTraits(
        retry="free", fails_run=False, savepoint="keep", plan="keep",
        uses_failure_rules=False, keeps_processes=True, is_unexplained=False,
        may_be_worker=False, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # pip failed.
    REQUIREMENTS = "requirements", FailureTraits(
        retry="no", fails_run=True, savepoint="keep", plan="keep",
        uses_failure_rules=False, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # Rows are unusable.
    DATA = "data", FailureTraits(
        retry="no", fails_run=True, savepoint="keep", plan="keep",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # The worker drains, or the attempt was revoked.
    PREEMPTED = "preempted", FailureTraits(
        retry="free", fails_run=False, savepoint="keep", plan="keep",
        uses_failure_rules=False, keeps_processes=True, is_unexplained=False,
        may_be_worker=False, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # An object store or a volume did not answer. A failed volume costs no attempt; see `Failure.volume`.
    UNAVAILABLE = "unavailable", FailureTraits(
        retry="counted", fails_run=False, savepoint="keep", plan="keep",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # The parallel plan cannot train this model. Another plan costs no attempt.
    NOT_APPLICABLE = "not_applicable", FailureTraits(
        retry="no", fails_run=False, savepoint="keep", plan="rule_out",
        uses_failure_rules=False, keeps_processes=True, is_unexplained=False,
        may_be_worker=False, may_be_lost_peer=True, may_be_kernel_kill=False,
    )

    # Another worker of a gang did not come, or was lost. Counted as a lost worker.
    MEMBER_LOST = "member_lost", FailureTraits(
        retry="no", fails_run=False, savepoint="keep", plan="rule_out",
        uses_failure_rules=False, keeps_processes=False, is_unexplained=False,
        may_be_worker=False, may_be_lost_peer=False, may_be_kernel_kill=False,
    )

    # The machine is faulty. Counted against its worker.
    DEVICE = "device", FailureTraits(
        retry="elsewhere", fails_run=False, savepoint="keep", plan="keep",
        uses_failure_rules=True, keeps_processes=False, is_unexplained=False,
        may_be_worker=True, may_be_lost_peer=False, may_be_kernel_kill=False,
    )


def text_of(limit: int) -> BeforeValidator:
    """Build a validator that cleans and shortens text of any length."""
    return BeforeValidator(lambda value: cleaned(value, limit) if isinstance(value, str) else value)


class Failure(Contract):
    """Why a task or a run ended without a result, for people. Cleans and shortens its text."""

    kind: FailureKind
    message: Annotated[str, text_of(MAX_MESSAGE)]
    traceback: Annotated[str, text_of(MAX_TRACEBACK)] = ""
    """Traceback of an exception in user code. For a hang: the stacks of all threads, newest calls first."""
    needs_bytes: int = 0
    """Bytes that the checkpoint volume lacked."""
    volume: Annotated[str, text_of(MAX_MESSAGE)] = Field("", exclude_if=lambda path: not path)
    """Path on a full or unusable volume; absent for other failures. It does not count as an attempt of the task, which
    is tried elsewhere. The run pauses if that also fails."""

    @property
    def is_of_volume(self) -> bool:
        """True if a volume was full or unusable, so the task is not the cause."""
        return self.kind is FailureKind.STORAGE_FULL or (
            self.kind is FailureKind.UNAVAILABLE and bool(self.volume)
        )

    rows_failed: int = Field(0, exclude_if=lambda number: number == 0)
    """Failed rows, if they ended ETL."""

    memory_kind: MemoryKind | None = Field(None, exclude_if=lambda kind: kind is None)
    """Memory that ran out. Absent if unknown."""
    rank: int | None = Field(None, exclude_if=lambda rank: rank is None)
    """Rank that failed first, for a sub-epoch on several devices."""
    peak_bytes: int = Field(0, ge=0, exclude_if=lambda number: number == 0)
    """Peak memory of the process or rank that ran out of memory, in bytes. 0 (absent): unknown."""
    limit_bytes: int = Field(0, ge=0, exclude_if=lambda number: number == 0)
    """Memory of the worker's own processes, or of the device, in bytes. 0: unknown, or shared with other processes."""
    is_idle: bool = Field(False, exclude_if=lambda value: not value)
    """True for a hang whose processes did nothing, so another attempt may succeed."""
    may_be_device: bool = Field(False, exclude_if=lambda value: not value)
    """True for an error of user code that a broken device may have caused."""
    is_by_parallel_plan: bool = Field(False, exclude_if=lambda value: not value)
    """True if the sub-epoch ran by another parallel plan than user code is written for, a possible cause."""
    rule: MatchedRule | None = Field(None, exclude_if=lambda rule: rule is None)
    """The failure rule that matched."""
    late_rules: tuple[str, ...] = Field((), exclude_if=lambda names: not names)
    """Failure rules that were ended because they took too long."""

    @property
    def label(self) -> str:
        """Names of the failure rules that matched or took too long, or an empty text."""
        late = [f"failure rule {name!r} took too long" for name in self.late_rules]
        return ", ".join([*([self.rule.name] if self.rule else []), *late])

    @property
    def is_final(self) -> bool:
        """True if a failure rule forbids another attempt."""
        return self.rule is not None and self.rule.action == "no_retry"

    @property
    def text(self) -> str:
        """The message, then the traceback without its last line if that repeats the message."""
        traceback = self.traceback.rstrip().removesuffix(self.message.rstrip())
        return f"{self._labelled}{self.message.strip()}\n{traceback}".rstrip()

    @property
    def line(self) -> str:
        """The message in one line, after its label."""
        return first_line(f"{self._labelled}{self.message.strip()}")

    @property
    def _labelled(self) -> str:
        return f"[{self.label}] " if self.label else ""
