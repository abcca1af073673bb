"""The part of `cerebro.runtime.kvs.client.KvsClient` for notification targets and the controller's outbox."""

from __future__ import annotations

from urllib.parse import quote

from cerebro.contract.accounts.identity import ACTS_FOR
from cerebro.contract.stored.notifications import (
    NotificationsAnswer,
    NotificationTarget,
    Outbox,
    OutboxAnswer,
    TargetRequest,
)
from cerebro.runtime.kvs.transport import Transport


class NotificationCalls(Transport):
    """Calls about notifications. Each method is one request."""

    def notifications(self, *, acts_for: str = "") -> NotificationsAnswer:
        """Return the targets that the caller may see, and their results.

        Args:
            acts_for: the user for whom the dispatcher calls.
        """
        headers = {ACTS_FOR: acts_for} if acts_for else {}
        content = self.send("GET", "/v1/notifications", None, 0.0, headers)
        return self.answered(NotificationsAnswer, "GET", "/v1/notifications", content)

    def add_notification(self, request: TargetRequest) -> NotificationTarget:
        """Add a target. A repeated call adds a second one.

        Raises:
            ForbiddenError: the caller may not get these events.
            ConflictError: the caller has too many targets.
        """
        return self.call("POST", "/v1/notifications", NotificationTarget, request)

    def remove_notification(self, target: str) -> None:
        """Remove a target. `NotFoundError` if the caller may not see it or it does not exist."""
        self.send("DELETE", f"/v1/notifications/{quote(target, safe='')}", None, 0.0)

    def test_notification(self, target: str) -> NotificationTarget:
        """Request a test message; `TargetStatus.tested` shows the attempt."""
        return self.call("POST", f"/v1/notifications/{quote(target, safe='')}/test", NotificationTarget)

    def outbox(self) -> OutboxAnswer:
        """Return all targets with their addresses, and the outbox. Controller only."""
        return self.call("GET", "/v1/outbox", OutboxAnswer)

    def replace_outbox(self, outbox: Outbox) -> None:
        """Replace the outbox. Controller only."""
        self.send("PUT", "/v1/outbox", outbox.model_dump_json().encode(), 0.0)
