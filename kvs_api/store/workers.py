"""Workers in the store: registrations, reports, inboxes and the requested number of workers.

Views of the REST API call it for agents, the controller and clients. It decides nothing about workers: leases
and open attempts change in the script (`workers.lua`, `steps.lua`), machine health is in `kvs_api.store.health`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from cerebro import errors
from cerebro.contract.events import LivePoint
from cerebro.contract.records import (
    AUTOSCALER,
    Replica,
    SizeRequest,
    UsageSample,
    WorkerRecord,
    WorkerSetStatus,
    WorkerStatus,
    WorkerUsage,
    no_workers_for,
)
from cerebro.contract.rest import api
from kvs_api.accounts.notifications import NotificationStore
from kvs_api.store import keys, steps
from kvs_api.store.database import seq_of, text, translated

log = logging.getLogger(__name__)

_DAY_S = 24 * 3600

_STORE_FIELDS = steps.UNNUMBERED | {"worker"}
"""Fields of a live point that the store sets."""

_STATUS_FIELDS = ("record", "reported", "free", "running", "leaving", "usage")
_EMPTY_JSON_TEXT = '""'

_MIN_TRIMMED = 32
"""Minimum number of read entries to remove from an inbox at once; single removals would cost a write per task."""


class WorkerStore(NotificationStore):
    """Reads and changes of workers. One link in the chain of base classes of `kvs_api.store.store.Store`."""

    # --- workers ---------------------------------------------------------------------------------

    def register(self, record: WorkerRecord) -> WorkerRecord:
        """Register a worker's new incarnation, with an empty inbox. A repeated call keeps the inbox."""
        self._run(
            {
                "call": "register",
                "workers": keys.WORKERS,
                "name": record.worker,
                "worker": keys.worker(record.worker),
                "inbox": keys.inbox(record.worker),
                "recent": keys.recent(record.worker),
                "incarnation": record.incarnation,
                "record": record.model_dump_json(),
                "devices": max(1, len(record.devices)),
                "cluster": keys.CLUSTER,
            }
        )
        return record

    def remove_worker(self, worker: str, incarnation: str | None) -> None:
        """Remove a worker.

        Args:
            worker: name of the worker.
            incarnation: remove only this incarnation; `None` removes any.

        Raises:
            NotFoundError: the worker is not registered.
            ConflictError: the worker has registered again; nothing is removed.
        """
        call = {
            "call": "remove",
            "workers": keys.WORKERS,
            "name": worker,
            "worker": keys.worker(worker),
            "inbox": keys.inbox(worker),
            "recent": keys.recent(worker),
            "history": keys.usage(worker),
            "health": keys.HEALTH,
            "cluster": keys.CLUSTER,
        }
        answer = self._run(call | ({"incarnation": incarnation} if incarnation else {}))
        if "missing" in answer:
            raise errors.NotFoundError(f"no worker {worker!r} is registered: see `cerebro status`")
        if "current" in answer:
            raise errors.ConflictError(f"worker {worker!r} has registered again since")

    def workers(self) -> tuple[WorkerStatus, ...]:
        """Return all registered workers, by name."""
        return tuple(WorkerStatus.model_validate_json(each) for each in self.worker_documents())

    def worker_documents(self) -> list[str]:
        """Return `workers` as JSON objects, spliced from stored text.

        The controller reads the status of up to 1,000 workers each second; parsing them would block other requests.
        """
        with translated():
            now = self._now()
            names = sorted(text(name) for name in self._redis.smembers(keys.WORKERS))
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hmget(keys.worker(name), *_STATUS_FIELDS)
            found = pipe.execute()
        return [
            f'{{"record":{record.decode()},"silent_s":{max(0, now - int(reported)) / 1000},'
            f'"checkpoint_free_bytes":{free.decode() or "null"},"running":{_quoted(running)},'
            f'"leaving":{_quoted(leaving) if leaving else _EMPTY_JSON_TEXT},'
            f'"usage":{usage.decode() if usage else "null"}}}'
            for record, reported, free, running, leaving, usage in found
            if record  # removed between the two reads
        ]

    def report(self, worker: str, request: api.ReportRequest) -> dict[str, Any]:
        """Apply a worker's steps; store its live points and heartbeat."""
        live, points = _live(worker, request.live)
        # Only the worker writes its own record, so reading and writing it in two steps is safe.
        fields = {} if request.replicas is None else self._renewed_fields(worker, request.replicas)
        if request.usage is not None:
            fields["usage"] = request.usage.model_dump_json()
        return self._run(
            fields
            | {
                "call": "report",
                **self._hour_arguments(),
                "worker": keys.worker(worker),
                "incarnation": request.incarnation,
                "lease_ms": round(request.lease_s * 1000),
                "free": "" if request.checkpoint_free_bytes is None else str(request.checkpoint_free_bytes),
                "running": request.running or "",
                "leaving": request.leaving,
                "cluster": keys.CLUSTER,
                "steps": [steps.report(worker, step) for step in request.steps],
                "live": live,
                "live_id": _points_hash(live, points) if live else "",
                "recent": keys.recent(worker),
                "history": keys.usage(worker),
                "reclaim": keys.RECLAIM,
            },
            *points,
        )

    def usage(self, worker: str) -> tuple[UsageSample, ...]:
        """Return a worker's usage over the last day, oldest first."""
        with translated():
            if not self._redis.exists(keys.worker(worker)):
                raise errors.NotFoundError(f"no worker {worker!r} is registered: see `cerebro status`")
            seconds, _ = self._redis.time()
            found: Any = self._redis.xrange(keys.usage(worker), min=(seconds - _DAY_S) * 1000)
        return tuple(
            UsageSample(time=seq_of(identity) / 1000, usage=WorkerUsage.model_validate_json(fields[b"u"]))
            for identity, fields in found
        )

    def _renewed_fields(self, worker: str, replicas: tuple[Replica, ...]) -> dict[str, str]:
        """Return the worker's record with new replicas; {} for an unregistered worker."""
        with translated():
            content: Any = self._redis.hget(keys.worker(worker), "record")
        if content is None:
            return {}
        record = WorkerRecord.model_validate_json(content)
        return {"record": record.model_copy(update={"replicas": replicas}).model_dump_json()}

    def inbox(self, worker: str, incarnation: str, cursor: int, wait_s: float) -> Iterator[str]:
        """Yield inbox entries as JSON objects; nothing for a replaced incarnation.

        The reader has received all entries up to `cursor`. They are removed, at least `_MIN_TRIMMED` at a time.
        """
        key = keys.inbox(worker)
        for _, entries in self._block({key: cursor}, wait_s):
            with translated(), self._redis.pipeline(transaction=False) as pipeline:
                pipeline.hget(keys.worker(worker), "incarnation")
                pipeline.xlen(key)
                current, length = pipeline.execute()
            if current != incarnation.encode():
                return
            if length - len(entries) >= _MIN_TRIMMED:
                self._trim(worker, incarnation, cursor)
            for identity, fields in entries:
                body = fields[b"b"].decode() or "null"
                yield f'{{"seq":{seq_of(identity)},"body":{body},{fields[b"e"].decode()[1:]}'

    def _trim(self, worker: str, incarnation: str, after: int) -> None:
        self._run(
            {
                "call": "trim",
                "worker": keys.worker(worker),
                "inbox": keys.inbox(worker),
                "incarnation": incarnation,
                "after": after,
            }
        )

    # --- the cluster's size ----------------------------------------------------------------------

    def size_request(self) -> SizeRequest | None:
        """Return the pending size request, or `None`."""
        with translated():
            content: Any = self._redis.get(keys.SIZE)
        return None if content is None else SizeRequest.model_validate_json(content)

    def request_size(self, request: SizeRequest) -> None:
        """Replace the size request.

        A request with a `problem` is the refusal of the pending request. It replaces only a request for the
        same number of workers.

        Raises:
            ConflictError: the refused request is not pending; or a person requests 0 workers without `pause`
                while runs are open. The autoscaler's requests are not checked: it knows which runs are paused.
        """
        is_refusal = bool(request.problem)
        is_checked = not (request.workers or request.pause or is_refusal or request.by == AUTOSCALER)
        found = self._size(
            request.workers,
            record=request.model_dump_json(),
            only_if_pending=is_refusal,
            unless_open=is_checked,
        )
        if affected := found.get("open"):
            raise errors.ConflictError(no_workers_for(affected))

    def withdraw_size_request(self, workers: int) -> None:
        """Remove the pending request for this number of workers.

        Raises:
            ConflictError: no request for this number is pending.
        """
        self._size(workers, only_if_pending=True)

    def _size(self, workers: int, **fields: Any) -> dict[str, Any]:
        names = {"size": keys.SIZE, "cluster": keys.CLUSTER, "queue": keys.QUEUE}
        found = self._run({"call": "size", "workers": workers} | names | fields)
        if "outdated" in found:
            raise errors.ConflictError(f"no request for {workers} workers is pending")
        return found

    def worker_set_status(self) -> WorkerSetStatus:
        """Return the reasons why workers do not start. Damaged content counts as none."""
        with translated():
            content: Any = self._redis.get(keys.WORKER_SET)
        try:
            return WorkerSetStatus() if content is None else WorkerSetStatus.model_validate_json(content)
        except ValidationError as error:
            log.warning(
                "the stored status of the worker set is damaged: %s",
                errors.validation_summary(error.errors()),
            )
            return WorkerSetStatus()

    def set_worker_set_status(self, status: WorkerSetStatus) -> None:
        """Replace the reasons why workers do not start."""
        self._run({"call": "put", "key": keys.WORKER_SET, "record": status.model_dump_json()})


def _quoted(value: bytes) -> str:
    """Return the value as JSON; null for an empty value."""
    return json.dumps(value.decode()) if value else "null"


def _live(worker: str, live: Mapping[str, Sequence[LivePoint]]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Group live points by attempt, for the Lua script. Return the groups and the texts to store."""
    parts: dict[tuple[str, str, int], list[bytes]] = {}
    for experiment, points in live.items():
        for point in points:
            # Defaults are not stored. The worker's name is inserted into the JSON text, because copying each point
            # to add it is slower. The script adds numbers and times the same way.
            content = point.model_dump_json(exclude=_STORE_FIELDS, exclude_defaults=True)
            text = f'{{"worker":"{worker}",{content[1:]}'.encode()
            parts.setdefault((experiment, point.task, point.attempt), []).append(text)
    groups = [
        {
            "log": keys.live(experiment),
            "events": keys.log(experiment),
            "key": keys.task(experiment, task),
            "attempt": attempt,
            "count": len(texts),
        }
        for (experiment, task, attempt), texts in parts.items()
    ]
    return groups, [text for texts in parts.values() for text in texts]


def _points_hash(live: list[dict[str, Any]], points: list[bytes]) -> str:
    """Return a hash of the points; the script ignores the points of a repeated report by it."""
    return hashlib.sha256(b"\n".join([json.dumps(live).encode(), *points])).hexdigest()
