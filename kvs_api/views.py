"""The HTTP face of the store: what requests say, and what is answered. Every rule about state is in `kvs_api.store`.

Answers that carry events are spliced from stored JSON instead of being parsed and dumped again: the log was validated
when it was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from flask import Response, request
from pydantic import BaseModel, TypeAdapter

from cerebro import errors
from cerebro.contract import SCHEMA_VERSION, api
from cerebro.contract.base import Contract, Name
from cerebro.contract.events import ClientEvent
from cerebro.contract.openapi import document
from cerebro.contract.records import CodeRecord, ExperimentRecord, SizeRequest, Troubles, WorkerRecord
from cerebro.contract.routes import STORE
from cerebro.contract.trials import TrialRecord
from kvs_api.store import Store

Body = TypeVar("Body", bound=BaseModel)

_NAME: TypeAdapter[str] = TypeAdapter(Name)
_CLIENT_EVENT: TypeAdapter[ClientEvent] = TypeAdapter(ClientEvent)

_MAX_ONCE = 64


class Views:
    """The answer to each request: one method for each entry of `STORE`, by its name."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def health(self) -> Response:
        """Whether Redis answers, and which schema and version this is."""
        ok = self._store.ping()
        answer = api.Health(
            status="ok" if ok else "store-unavailable",
            schema_version=SCHEMA_VERSION,
            version=package_version(),
        )
        return Response(answer.model_dump_json(), 200 if ok else 503, mimetype="application/json")

    def live(self) -> Response:
        """A constant: the process answers requests, whatever Redis does."""
        return Response("ok\n", mimetype="text/plain")

    def openapi(self) -> Response:
        """The OpenAPI document of this API."""
        return Response(openapi_document(package_version()), mimetype="application/json")

    def lead(self) -> Response:
        """Take the controller's leadership, or keep it."""
        return _answer(self._store.lead(_body(api.LeaderRequest)))

    def experiments(self) -> Response:
        """All experiments, newest event first."""
        return _answer(api.ExperimentsAnswer(experiments=self._store.experiments()))

    def create_experiment(self, name: str) -> Response:
        """Create an experiment, or find the same one again."""
        record = _body(ExperimentRecord)
        if record.name != name:
            raise errors.BadRequestError(
                f"the path names the experiment {name!r}, the body names {record.name!r}: give one name"
            )
        return _answer(self._store.create_experiment(record))

    def experiment(self, name: str) -> Response:
        """The record of one experiment."""
        return _answer(self._store.experiment(_name(name)))

    def append(self, name: str) -> Response:
        """Append a client's event to a log, once for each call's identity."""
        event = _CLIENT_EVENT.validate_json(request.get_data())
        once = request.headers.get(api.ONCE, "")
        if len(once) > _MAX_ONCE:
            raise errors.BadRequestError(
                f"{api.ONCE} has {len(once)} characters, expected at most {_MAX_ONCE}"
            )
        return _answer(
            api.AppendAnswer(
                seq=self._store.append(
                    _name(name), event, once=once, is_unread=request.args.get("unread") == "1"
                )
            )
        )

    def delete_experiment(self, name: str) -> Response:
        """Forget an experiment that a user asked to delete."""
        self._store.delete_experiment(_name(name), _whole_number("term", "the controller's leadership"))
        return Response(status=204)

    def events(self, name: str) -> Response:
        """A log after a cursor; waits for news if asked to."""
        self._store.require(_name(name))
        self._refuse_older()
        is_checked = request.args.get("check") == "1"
        events = self._store.read_log(
            _name(name), *_cursor(), is_checked=is_checked, is_marked=is_checked and _knows_ledger()
        )
        return _json(f'{{"events":[{",".join(events)}]{_told()}}}')

    def quarantine(self, name: str) -> Response:
        """Quarantine an experiment that cannot be read."""
        asked = _body(api.QuarantineRequest)
        self._store.quarantine(_name(name), asked.problem, asked.term)
        return Response(status=204)

    def restore(self, name: str) -> Response:
        """Take an experiment out of quarantine."""
        self._store.restore(_name(name))
        return Response(status=204)

    def points(self, name: str) -> Response:
        """Live points after a cursor; waits for news if asked to."""
        self._store.require(_name(name))
        return _spliced("points", self._store.live(_name(name), *_cursor()))

    def watch(self) -> Response:
        """Wait until one of several logs, or the cluster, has news."""
        self._refuse_older()
        found, cluster = self._store.watch(_body(api.WatchRequest))
        logs = ",".join(f'"{name}":[{",".join(entries)}]' for name, entries in found.items())
        return _json(f'{{"events":{{{logs}}},"cluster":{cluster}{_told()}}}')

    def ledger(self) -> Response:
        """The cluster's log after a cursor; waits for news if asked to."""
        return _spliced("events", self._store.ledger(*_cursor()))

    def write_ledger(self) -> Response:
        """Append the controller's events of the cluster, and return the cluster's log after its cursor."""
        asked = _body(api.LedgerRequest)
        is_written = json.dumps(self._store.write_ledger(asked))
        events = ",".join(self._store.ledger(asked.after, 0))
        return _json(f'{{"is_written":{is_written},"events":[{events}]}}')

    def decide(self, name: str) -> Response:
        """Apply the controller's steps, and return the events since its cursor."""
        self._refuse_older()
        outcomes, found = self._store.decide(_name(name), _body(api.DecideRequest))
        told = ",".join(api.StepOutcome.model_validate(outcome).model_dump_json() for outcome in outcomes)
        return _json(f'{{"outcomes":[{told}],"events":[{",".join(found)}]{_told()}}}')

    def queue(self) -> Response:
        """Open runs, oldest first, and experiments to delete."""
        self._refuse_older()
        known = None if _knows_ledger() else {"runs", "deleting"}
        return _json(self._store.queue().model_dump_json(include=known))

    def audit(self) -> Response:
        """The newest entries of the audit list, oldest first."""
        return _answer(api.AuditAnswer(entries=self._store.audit()))

    def reclaim(self) -> Response:
        """Data sets that no experiment uses any more."""
        return _answer(self._store.reclaim())

    def workers(self) -> Response:
        """The status of each registered worker."""
        return _answer(api.WorkersAnswer(workers=self._store.workers()))

    def register(self, name: str) -> Response:
        """Register a new incarnation of a worker."""
        record = _body(WorkerRecord)
        if record.worker != name:
            raise errors.BadRequestError(
                f"the path names the worker {name!r}, the body names {record.worker!r}: give one name"
            )
        return _answer(self._store.register(record))

    def remove_worker(self, name: str) -> Response:
        """Forget a worker that is gone for good."""
        self._store.remove_worker(_name(name), request.args.get("incarnation"))
        return Response(status=204)

    def size_request(self) -> Response:
        """The pending size request, if there is one."""
        return _answer(api.SizeAnswer(request=self._store.size_request()))

    def request_size(self) -> Response:
        """Make a size request, or answer one with a problem."""
        size_request = _body(SizeRequest)
        self._store.request_size(size_request)
        return _answer(size_request)

    def withdraw_size_request(self) -> Response:
        """Withdraw a size request."""
        self._store.withdraw_size_request(_whole_number("workers", "the number that was asked for"))
        return Response(status=204)

    def troubles(self) -> Response:
        """Why workers do not start."""
        return _answer(self._store.troubles())

    def set_troubles(self) -> Response:
        """Replace the reasons why workers do not start."""
        troubles = _body(Troubles)
        self._store.set_troubles(troubles)
        return _answer(troubles)

    def usage(self, name: str) -> Response:
        """What a worker used over the last day."""
        return _answer(api.UsageAnswer(samples=self._store.usage(_name(name))))

    def report(self, name: str) -> Response:
        """Apply a worker's steps, and renew its leases."""
        return _answer(
            api.ReportAnswer.model_validate(self._store.report(_name(name), _body(api.ReportRequest)))
        )

    def inbox(self, name: str) -> Response:
        """A worker's inbox after a cursor; waits for an entry if asked to."""
        items = self._store.inbox(_name(name), request.args.get("incarnation", ""), *_cursor())
        knows = {name for name in ("places", "devices") if request.args.get(name) == "1"}
        if knows != {"places", "devices"}:
            items = (_for_older(item, knows) for item in items)
        return _spliced("items", items)

    def trials(self) -> Response:
        """Outcomes of earlier trials."""
        return _answer(api.TrialsAnswer(records=self._store.trials(_body(api.TrialsRequest).keys)))

    def keep_trial(self) -> Response:
        """Keep the outcome of a trial."""
        record = _body(TrialRecord)
        self._store.keep_trial(record)
        return _answer(record)

    def forget_trials(self) -> Response:
        """Remove outcomes of trials."""
        return _answer(
            api.ForgottenAnswer(forgotten=self._store.forget_trials(_body(api.TrialsRequest).keys))
        )

    def put_code(self, sha256: str) -> Response:
        """Store user code under its hash."""
        record = _body(CodeRecord)
        if record.sha256 != sha256:
            raise errors.BadRequestError(
                f"the path names the hash {sha256}, the body names {record.sha256}: give one hash"
            )
        return _answer(self._store.put_code(record))

    def code(self, sha256: str) -> Response:
        """User code by its hash."""
        return _answer(self._store.code(sha256))

    def _refuse_older(self) -> None:
        """Refuse a caller that knows no events of the cluster's log, once there are any.

        Versions before it refuse fields and events that they do not know, and there are more of them. A client that
        connects asks for the queue first. `ConflictError`: a controller of such a version gives up its leadership.
        """
        if not _knows_ledger() and self._store.has_ledger():
            here = package_version()
            raise errors.ConflictError(
                f"this cluster runs Cerebro {here}, this program is of version 0.1.0 or older and cannot read what "
                f"happens in it: install Cerebro {here}"
            )

    def put_archive(self, sha256: str) -> Response:
        """Store a code archive under its hash."""
        self._store.put_archive(sha256, request.get_data())
        return Response(status=204)

    def archive(self, sha256: str) -> Response:
        """A code archive by its hash."""
        return Response(self._store.archive(sha256), mimetype="application/octet-stream")


def _for_older(item: str, knows: set[str]) -> str:
    """An entry of an inbox for a worker of a version that does not know `TrainTask.position` or `InboxItem.devices`: it
    refuses what it does not know, and during an upgrade it trains on beside newer ones."""
    found = json.loads(item)
    if found["body"] and "places" not in knows:
        found["body"].pop("place", None)
    if "devices" not in knows:
        found.pop("devices", None)
    return json.dumps(found)


@cache
def openapi_document(version: str) -> str:
    """The OpenAPI document of all routes."""
    return document({"title": "Cerebro key-value store", "version": version}, STORE, (400, 401, 413, 503))


def package_version() -> str:
    """Version of the installed distribution."""
    try:
        return version("cerebro-platform")
    except PackageNotFoundError:
        return "0"


def _body(model: type[Body]) -> Body:
    return model.model_validate_json(request.get_data())


def _name(name: str) -> str:
    return _NAME.validate_python(name)


def _whole_number(name: str, meaning: str) -> int:
    text = request.args.get(name, "")
    if not text.isdecimal() or int(text) > api.MAX_SEQ:
        raise errors.BadRequestError(f"{name} must be {meaning}, not {text!r}")
    return int(text)


def _knows_ledger() -> bool:
    """Whether the caller knows events of the cluster's log; one of an older version does not."""
    return request.args.get("ledger") == "1"


def _told() -> str:
    """What who knows of the ledger is told beside events: that they are from a server that does, too."""
    return ',"ledger":true' if _knows_ledger() else ""


def _cursor() -> tuple[int, float]:
    try:
        after, wait_s = int(request.args.get("after", "0")), float(request.args.get("wait_s", "0"))
    except ValueError as cause:
        raise errors.BadRequestError(f"after and wait_s must be numbers: {cause}") from cause
    if not (0 <= after <= api.MAX_SEQ and 0 <= wait_s <= api.MAX_WAIT_S):
        raise errors.BadRequestError(
            f"after must be between 0 and 2^53 and wait_s between 0 and {api.MAX_WAIT_S:g}"
        )
    return after, wait_s


def _spliced(field: str, entries: Iterable[str]) -> Response:
    return _json(f'{{"{field}":[{",".join(entries)}]}}')


def _json(content: str) -> Response:
    return Response(content, mimetype="application/json")


def _answer(model: Contract) -> Response:
    return _json(model.model_dump_json())
