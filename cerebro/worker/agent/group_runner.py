"""Follow the attempts of a fused group in their child process, from start to the last answer.

Like `AttemptRunner`, which follows one attempt. A member may end alone: it fails, is revoked or is preempted. The
lease ends its attempt and reports a failure at once. The slot reports the answers of the other members.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cerebro.contract.rest.api import YIELD_S
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.worker.agent.attempt_runner import Answer, AttemptRunner
from cerebro.worker.agent.lease import attempts_of, name_of
from cerebro.worker.agent.processes.process import ChildProcess
from cerebro.worker.protocol.messages import (
    Done,
    Failed,
    FromChild,
    GroupEnded,
    MemberEnded,
    Preempted,
    Progress,
    Saved,
)


class GroupRunner(AttemptRunner):
    """Follows the attempts of a fused group. Arguments as of `AttemptRunner`.

    Args:
        explain: completes the failure of a member that ends before the others.
    """

    def __init__(
        self,
        child: ChildProcess,
        item: InboxItem,
        *,
        explain: Callable[[Failure, InboxItem], Failure],
        **options: Any,
    ) -> None:
        super().__init__(child, item, **options)
        self._process, self._explain = child, explain
        self._members = attempts_of(item)
        self._answers: dict[int, Answer] = {}
        self._has_left: set[int] = set()
        """Members that have ended before the others, or were revoked."""
        self._exit_reasons: dict[int, str] = {}
        """Members that were asked to leave, with the reason."""

    def follow_members(self) -> list[tuple[InboxItem, Answer]]:
        """Return the answer of each member, also of members that have ended before the others."""
        group_answer = self.follow()
        return [
            (member, self._answers.get(number, group_answer)) for number, member in enumerate(self._members)
        ]

    def _verdict(self) -> Failure | None:
        lost, reasons = self._lease.lost, self._lease.release_reasons
        for number, member in enumerate(self._members):
            if number in self._has_left or number in self._answers:
                continue
            if name_of(member) in lost:
                self._has_left.add(number)
                self._lease.end(member)
                self._request_exit(number, "it was revoked", grace_s=0.0)
            elif (reason := reasons.get(name_of(member), "")) and number not in self._exit_reasons:
                self._request_exit(number, reason, grace_s=YIELD_S)
        is_revoked = any(number not in self._answers for number in self._has_left)
        if is_revoked and len(self._has_left) == len(self._members):
            return self._kill(FailureKind.PREEMPTED, "all attempts of the group have ended")
        return super()._verdict()

    def _request_exit(self, number: int, reason: str, *, grace_s: float) -> None:
        self._exit_reasons[number] = reason
        with suppress(OSError):  # the process has ended, as `follow` will notice
            self._process.preempt(reason, grace_s=grace_s, member=number)

    def _take(self, message: FromChild) -> Answer | None:
        match message:
            case Progress():
                self._progress(self._point(message, self._member(message.member)))
            case Saved():
                self._saved(message.savepoint, self._member(message.member))
            case MemberEnded():
                self._end_member(message)
            case GroupEnded():
                # Only for members without their own answer, which a correct process does not leave.
                return Failure(kind=FailureKind.CRASH, message="its process did not say how it ended")
            case Done():
                self._child.channel.refuse(message)
            case _:
                return super()._take(message)
        return None

    def _member(self, number: int) -> InboxItem:
        """Return an open member.

        Raises:
            ValueError: there is none with this number.
        """
        if number >= len(self._members) or number in self._answers:
            raise ValueError(number)
        return self._members[number]

    def _end_member(self, message: MemberEnded) -> None:
        number, member = message.member, self._member(message.member)
        match message.answer:
            case Done(result=result):
                self._answers[number] = result
                return
            case Failed(failure=failure):
                failure = self._explain(self._process.explained(failure), member)
            case Preempted():
                if number not in self._exit_reasons:
                    raise ValueError(number)
                reason = self._exit_reasons[number]
                message_text = (
                    f"{reason}; it was left between two batches, and the others of its group went on"
                )
                failure = Failure(kind=FailureKind.PREEMPTED, message=message_text)
        self._answers[number] = failure
        if number not in self._has_left:
            self._has_left.add(number)
            self._lease.end_early(failure, member)
