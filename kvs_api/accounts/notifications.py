"""Notification targets of users, and the controller's outbox. Views and rules: `cerebro.contract.stored.notifications`.

An address may contain a secret: it stays here and in the controller, and no error, log or audit entry has it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
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
    may_see,
    suspension,
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

        def add(known: Mapping[str, StoredTarget]) -> StoredTarget:
            if sum(each.target.owner == target.owner for each in known.values()) >= MAX_TARGETS:
                raise errors.ConflictError(
                    f"you have {MAX_TARGETS} notification targets, the maximum: remove one, see `cerebro notify list`"
                )
            return StoredTarget(target=target, url=request.url)

        return self._changed(add).target

    def targets(self) -> tuple[StoredTarget, ...]:
        """Return all targets, oldest first, with the reason if one is suspended. Unreadable ones are skipped."""
        with translated():
            found: Any = self._redis.hgetall(keys.NOTIFICATIONS)
        known = sorted(_read(found).values(), key=lambda each: (each.target.created, each.target.id))
        is_shared = any(each.target.coverage is not Coverage.OWNER and each.target.owner for each in known)
        now = time.time()
        tokens = [each.principal for each in self.tokens() if each.expires > now] if is_shared else []
        return tuple(each.model_copy(update={"suspended": suspension(each.target, tokens)}) for each in known)

    def remove_target(self, identity: str, who: Principal | None) -> NotificationTarget:
        """Remove a target.

        Raises:
            NotFoundError: the target does not exist, or the caller may not see it.
        """
        target = self._visible(identity, who).target
        with translated():
            self._redis.hdel(keys.NOTIFICATIONS, identity)
        return target

    def request_test(self, identity: str, who: Principal | None) -> NotificationTarget:
        """Record a request for a test message; the controller sends it.

        Raises:
            NotFoundError: the target does not exist, or the caller may not see it.
            ConflictError: the target is suspended.
        """
        if reason := self._visible(identity, who).suspended:
            raise errors.ConflictError(f"the notification target {identity} is suspended: {reason}")

        def request(known: Mapping[str, StoredTarget]) -> StoredTarget:
            if identity not in known:  # removed meanwhile
                raise _unknown(identity)
            target = known[identity].target.model_copy(update={"tested": time.time()})
            return known[identity].model_copy(update={"target": target})

        return self._changed(request).target

    def outbox(self) -> Outbox:
        """Return the controller's outbox. Damaged content counts as one without messages, from now on."""
        with translated():
            content: Any = self._redis.get(keys.OUTBOX)
        try:
            return Outbox() if content is None else Outbox.model_validate_json(content)
        except ValidationError as error:
            _log.warning(
                "the outbox is damaged, so notifications of earlier events are not sent: %s",
                errors.validation_summary(error.errors()),
            )
            return Outbox(since=time.time())

    def replace_outbox(self, outbox: Outbox) -> None:
        """Replace the outbox."""
        self._run({"call": "put", "key": keys.OUTBOX, "record": outbox.model_dump_json()})

    def _changed(self, change: Callable[[Mapping[str, StoredTarget]], StoredTarget]) -> StoredTarget:
        """Store the target that `change` returns for the present ones. Repeat if others change them meanwhile."""

        def transaction(pipe: Any) -> StoredTarget:
            stored = change(_read(pipe.hgetall(keys.NOTIFICATIONS)))
            pipe.multi()
            pipe.hset(keys.NOTIFICATIONS, stored.target.id, stored.model_dump_json(exclude={"suspended"}))
            return stored

        database: Any = self._redis
        with translated():
            stored: StoredTarget = database.transaction(
                transaction, keys.NOTIFICATIONS, value_from_callable=True
            )
        return stored

    def _visible(self, identity: str, who: Principal | None) -> StoredTarget:
        found = next((each for each in self.targets() if each.target.id == identity), None)
        if found is None or not may_see(found.target, who):
            raise _unknown(identity)
        return found


def _read(found: Mapping[Any, Any]) -> dict[str, StoredTarget]:
    known = {}
    for identity, content in found.items():
        try:
            known[text(identity)] = StoredTarget.model_validate_json(content)
        except ValidationError:
            _log.warning("the notification target %s is damaged: remove it", text(identity))
    return known


def _unknown(identity: str) -> errors.NotFoundError:
    return errors.NotFoundError(f"there is no notification target {identity!r}: see `cerebro notify list`")
