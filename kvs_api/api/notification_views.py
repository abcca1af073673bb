"""Views of notification targets (`kvs_api.accounts.notifications`), for people, and of the outbox, for the controller.

Rules: `cerebro.contract.stored.notifications`. Answers for people contain masked addresses only.
"""

from __future__ import annotations

from starlette.responses import Response

from cerebro import errors
from cerebro.contract.stored.notifications import (
    Coverage,
    NotificationsAnswer,
    Outbox,
    OutboxAnswer,
    TargetRequest,
    TargetStatus,
    coverage_of,
    may_see,
)
from kvs_api.api.account_views import AccountViews
from kvs_api.api.call import Call, answer, checked_name, done


class NotificationViews(AccountViews):
    """One method for each entry of `STORE` about notifications."""

    def notifications(self, call: Call) -> Response:
        """Return the targets that the caller may see, with masked addresses, and their results."""
        stored = [each for each in self._store.targets() if may_see(each.target, call.principal)]
        known = self._store.outbox().statuses if stored else {}
        statuses = {each.target.id: known[each.target.id] for each in stored if each.target.id in known}
        for each in stored:
            if each.suspended:
                status = statuses.get(each.target.id, TargetStatus())
                # No test message follows, so the reason is the answer to a request for one.
                answered = {"error": each.suspended, "tested": each.target.tested}
                statuses[each.target.id] = status.model_copy(update=answered)
        return answer(NotificationsAnswer(targets=tuple(each.target for each in stored), statuses=statuses))

    def add_notification(self, call: Call) -> Response:
        """Add a target."""
        request, who = call.body(TargetRequest), call.principal
        coverage = coverage_of(request, who)
        if not isinstance(coverage, Coverage):
            raise errors.ForbiddenError(coverage)
        target = self._store.add_target(request, coverage, who)
        about = f"project {target.project}" if target.project else f"{coverage} runs"
        self._note(call, f"added notification target {target.id}: {target.address} for {about}")
        return answer(target)

    def remove_notification(self, call: Call, name: str) -> Response:
        """Remove a target."""
        target = self._store.remove_target(checked_name(name), call.principal)
        self._note(call, f"removed notification target {target.id}: {target.address}")
        return done()

    def test_notification(self, call: Call, name: str) -> Response:
        """Request a test message."""
        return answer(self._store.request_test(checked_name(name), call.principal))

    def outbox(self, call: Call) -> Response:
        """Return all targets with their addresses, and the outbox."""
        return answer(OutboxAnswer(targets=self._store.targets(), outbox=self._store.outbox()))

    def replace_outbox(self, call: Call) -> Response:
        """Replace the outbox."""
        self._store.replace_outbox(call.body(Outbox))
        return done()
