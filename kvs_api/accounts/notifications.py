"""Notification targets of users, and the controller's outbox. Views and rules: `cerebro.contract.stored.notifications`.

An address may contain a secret: it stays here and in the controller, and no error, log or audit entry has it.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any

from pydantic import ValidationError

from cerebro import errors
from cerebro.contract.accounts.identity import Principal
from cerebro.contract.stored.notifications import (
    MAX_TARGETS,
    Coverage,
    NotificationTarget,
    Outbox,
    StoredTarget,
    TargetRequest,
    masked,
    may_remove,
    may_see,
)
from kvs_api.accounts.quotas import QuotaStore
from kvs_api.store import keys
from kvs_api.store.database import text, translated

_log = logging.getLogger(__name__)


class NotificationStore(QuotaStore):
    """Targets, one field of a hash each, and the outbox."""

    def add_target(
        self, request: TargetRequest, coverage: Coverage, who: Principal | None
    ) -> NotificationTarget:
        """Store a target.

        Raises:
            ConflictError: the owner has too many.
        """
        target = NotificationTarget(
            id=secrets.token_hex(4),
            address=masked(request.url),
            events=request.events,
            coverage=coverage,
            project=request.project,
            author=who.name if who is not None else "",
            owner=who.identity if who is not None else "",
            created=time.time(),
        )
        if sum(each.target.owner == target.owner for each in self.targets()) >= MAX_TARGETS:
            raise errors.ConflictError(
                f"you have {MAX_TARGETS} notification targets, the maximum: remove one, see `cerebro notify list`"
            )
        self._keep(StoredTarget(target=target, url=request.url))
        return target

    def targets(self) -> tuple[StoredTarget, ...]:
        """Return all targets, oldest first. Unreadable ones are skipped."""
        with translated():
            found: Any = self._redis.hgetall(keys.NOTIFICATIONS)
        known = []
        for identity, content in found.items():
            try:
                known.append(StoredTarget.model_validate_json(content))
            except ValidationError:
                _log.warning("the notification target %s is damaged: remove it", text(identity))
        return tuple(sorted(known, key=lambda each: (each.target.created, each.target.id)))

    def remove_target(self, identity: str, who: Principal | None) -> NotificationTarget:
        """Remove a target.

        Raises:
            NotFoundError: the target does not exist, or the caller may not see it.
            ForbiddenError: the caller is neither its owner nor an admin.
        """
        target = self._visible(identity, who).target
        if not may_remove(target, who):
            raise errors.ForbiddenError(
                f"the notification target {identity} belongs to {target.author or 'the operator'}, who may remove it, "
                "as may an admin"
            )
        with translated():
            self._redis.hdel(keys.NOTIFICATIONS, identity)
        return target

    def request_test(self, identity: str, who: Principal | None) -> NotificationTarget:
        """Record a request for a test message; the controller sends it.

        Raises:
            NotFoundError: the target does not exist, or the caller may not see it.
        """
        stored = self._visible(identity, who)
        target = stored.target.model_copy(update={"tested": time.time()})
        self._keep(stored.model_copy(update={"target": target}))
        return target

    def outbox(self) -> Outbox:
        """Return the controller's outbox. Damaged content counts as none."""
        with translated():
            content: Any = self._redis.get(keys.OUTBOX)
        try:
            return Outbox() if content is None else Outbox.model_validate_json(content)
        except ValidationError as error:
            _log.warning("the outbox is damaged: %s", errors.validation_summary(error.errors()))
            return Outbox()

    def replace_outbox(self, outbox: Outbox) -> None:
        """Replace the outbox."""
        self._run({"call": "put", "key": keys.OUTBOX, "record": outbox.model_dump_json()})

    def _keep(self, stored: StoredTarget) -> None:
        with translated():
            self._redis.hset(keys.NOTIFICATIONS, stored.target.id, stored.model_dump_json())

    def _visible(self, identity: str, who: Principal | None) -> StoredTarget:
        found = next((each for each in self.targets() if each.target.id == identity), None)
        if found is None or not may_see(found.target, who):
            raise errors.NotFoundError(
                f"there is no notification target {identity!r}: see `cerebro notify list`"
            )
        return found
