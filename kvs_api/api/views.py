"""HTTP views: each checks a request's body and access, calls one method of the store and forms the response.

`kvs_api.api.app` routes requests here by the table `STORE`, after authentication. Rules about state are in
`kvs_api.store.store`. Events, points and statuses are spliced from stored JSON without parsing: they were
validated when written.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from pydantic import TypeAdapter
from starlette.responses import Response

from cerebro import errors
from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.events import ClientEvent
from cerebro.contract.records import CodeRecord, ExperimentRecord, SizeRequest, WorkerRecord, WorkerSetStatus
from cerebro.contract.rest import api
from cerebro.contract.rest.openapi import document
from cerebro.contract.rest.routes import STORE
from cerebro.contract.stored import health
from cerebro.contract.trials import TrialRecord
from kvs_api.api.call import Call, answer, bytes_answer, checked_name, done, json_answer, spliced
from kvs_api.api.segment_views import SegmentViews
from kvs_api.api.stamping import stamped_code, stamped_event, stamped_health, stamped_record, stamped_size
from kvs_api.store.database import PAGE

_CLIENT_EVENT: TypeAdapter[ClientEvent] = TypeAdapter(ClientEvent)


class Views(SegmentViews):
    """Views of all requests: one method for each entry of `STORE`, by its name."""

    def health(self, call: Call) -> Response:
        """Return whether Redis answers, and the schema and version of this service."""
        ok = self._store.ping()
        found = api.Health(
            status="ok" if ok else "store-unavailable",
            schema_version=SCHEMA_VERSION,
            version=package_version(),
        )
        return json_answer(found.model_dump_json(), 200 if ok else 503)

    def live(self, call: Call) -> Response:
        """Answer with a constant: the process answers requests, independently of Redis."""
        return Response("ok\n", media_type="text/plain")

    def openapi(self, call: Call) -> Response:
        """Return the OpenAPI document of this API."""
        return json_answer(openapi_document(package_version()))

    def lead(self, call: Call) -> Response:
        """Take or keep the controller's leadership."""
        return answer(self._store.lead(call.body(api.LeaderRequest)))

    def experiments(self, call: Call) -> Response:
        """Return all experiments, newest event first."""
        return answer(api.ExperimentsAnswer(experiments=self._store.experiments()))

    def create_experiment(self, call: Call, name: str) -> Response:
        """Create an experiment, or return the existing same one."""
        record = call.body(ExperimentRecord)
        if record.name != name:
            raise errors.BadRequestError(
                f"the path names the experiment {name!r}, the body names {record.name!r}: give one name"
            )
        return answer(self._store.create_experiment(stamped_record(record, call.principal)))

    def experiment(self, call: Call, name: str) -> Response:
        """Return an experiment's record."""
        return answer(self._store.experiment(checked_name(name)))

    def append(self, call: Call, name: str) -> Response:
        """Append a client's event to a log, once for each idempotency key."""
        event = _CLIENT_EVENT.validate_json(call.content)
        record = self._check_may_change(call, checked_name(name))
        event = stamped_event(event, call.principal, record)
        seq = self._store.append(name, event, once=call.identity(), is_unread=call.args.get("unread") == "1")
        return answer(api.AppendAnswer(seq=seq))

    def delete_experiment(self, call: Call, name: str) -> Response:
        """Delete an experiment after a user's request."""
        self._store.delete_experiment(
            checked_name(name), call.require_integer("term", "the controller's leadership")
        )
        return done()

    def events(self, call: Call, name: str) -> Response:
        """Return a log after a cursor; can wait for news."""
        self._store.require(checked_name(name))
        is_checked = call.args.get("check") == "1"
        return spliced(
            "events", self._store.read_log(checked_name(name), *call.cursor(), is_checked=is_checked)
        )

    def quarantine(self, call: Call, name: str) -> Response:
        """Quarantine an experiment whose record or log is unreadable."""
        request = call.body(api.QuarantineRequest)
        self._store.quarantine(checked_name(name), request.problem, request.term)
        return done()

    def restore(self, call: Call, name: str) -> Response:
        """Release an experiment from quarantine."""
        self._store.restore(checked_name(name))
        self._note(call, f"restored experiment {name}")
        return done()

    def points(self, call: Call, name: str) -> Response:
        """Return live points after a cursor; can wait for news."""
        self._store.require(checked_name(name))
        return spliced("points", self._store.live(checked_name(name), *call.cursor()))

    def watch(self, call: Call) -> Response:
        """Return new events of several logs and the newest notification number; can wait for news."""
        found, cluster = self._store.watch(call.body(api.WatchRequest))
        logs = ",".join(f'"{name}":[{",".join(entries)}]' for name, entries in found.items())
        return json_answer(f'{{"events":{{{logs}}},"cluster":{cluster}}}')

    def cluster_log(self, call: Call) -> Response:
        """Return the cluster log after a cursor; can wait for news."""
        return spliced("events", self._store.cluster_log(*call.cursor()))

    def write_cluster_log(self, call: Call) -> Response:
        """Append the controller's events to the cluster log, and return the log after its cursor."""
        request = call.body(api.ClusterLogRequest)
        is_written = json.dumps(self._store.write_cluster_log(request))
        events = ",".join(self._store.cluster_log(request.after, 0))
        return json_answer(f'{{"is_written":{is_written},"events":[{events}]}}')

    def decide(self, call: Call, name: str) -> Response:
        """Apply the controller's steps, and return the events since its cursor."""
        outcomes, found = self._store.decide(checked_name(name), call.body(api.DecideRequest))
        outcomes_json = ",".join(
            api.StepOutcome.model_validate(outcome).model_dump_json() for outcome in outcomes
        )
        return json_answer(f'{{"outcomes":[{outcomes_json}],"events":[{",".join(found)}]}}')

    def queue(self, call: Call) -> Response:
        """Return open runs, oldest first, and experiments to delete."""
        return answer(self._store.queue())

    def audit(self, call: Call) -> Response:
        """Return the newest entries of the audit list, oldest first."""
        last = call.require_integer("last", "how many entries") if "last" in call.args else PAGE
        return answer(api.AuditAnswer(entries=self._store.audit(last)))

    def reclaim(self, call: Call) -> Response:
        """Return the data sets that no experiment uses."""
        return answer(self._store.reclaim())

    def workers(self, call: Call) -> Response:
        """Return the status of each registered worker."""
        return spliced("workers", self._store.worker_documents())

    def register(self, call: Call, name: str) -> Response:
        """Register a new incarnation of a worker."""
        record = call.body(WorkerRecord)
        if record.worker != name:
            raise errors.BadRequestError(
                f"the path names the worker {name!r}, the body names {record.worker!r}: give one name"
            )
        return answer(self._store.register(record))

    def remove_worker(self, call: Call, name: str) -> Response:
        """Remove a worker permanently."""
        self._store.remove_worker(checked_name(name), call.args.get("incarnation"))
        self._note(call, f"removed worker {name}")
        return done()

    def size_request(self, call: Call) -> Response:
        """Return the pending size request, if any."""
        return answer(api.SizeAnswer(request=self._store.size_request()))

    def request_size(self, call: Call) -> Response:
        """Request a number of workers, or refuse the pending request with a problem."""
        size_request = stamped_size(call.body(SizeRequest), call.principal)
        self._store.request_size(size_request)
        if call.principal is not None and not size_request.problem:
            self._store.note(size_request.by, f"asked for {size_request.workers} workers")
        return answer(size_request)

    def withdraw_size_request(self, call: Call) -> Response:
        """Withdraw a size request."""
        self._store.withdraw_size_request(call.require_integer("workers", "the number that was asked for"))
        return done()

    def worker_set_status(self, call: Call) -> Response:
        """Return the reasons why workers do not start."""
        return answer(self._store.worker_set_status())

    def set_worker_set_status(self, call: Call) -> Response:
        """Replace the reasons why workers do not start."""
        status = call.body(WorkerSetStatus)
        self._store.set_worker_set_status(status)
        return answer(status)

    def usage(self, call: Call, name: str) -> Response:
        """Return a worker's usage over the last day."""
        return answer(api.UsageAnswer(samples=self._store.usage(checked_name(name))))

    def report(self, call: Call, name: str) -> Response:
        """Apply a worker's steps, and renew its leases."""
        return answer(
            api.ReportAnswer.model_validate(
                self._store.report(checked_name(name), call.body(api.ReportRequest))
            )
        )

    def request_stacks(self, call: Call, name: str) -> Response:
        """Request a task's stack trace from its worker."""
        self._check_may_change(call, checked_name(name))
        return answer(self._store.request_stacks(name, call.body(api.StacksRequest)))

    def stacks(self, call: Call, name: str) -> Response:
        """Return the answer to a stack trace request."""
        request = api.StacksRequest(task="", question=call.args.get("question", ""))
        return answer(self._store.stacks(checked_name(name), request.question))

    def report_stacks(self, call: Call, name: str) -> Response:
        """Store a worker's stack trace."""
        checked_name(name)
        self._store.report_stacks(call.body(api.StacksReport))
        return done()

    def workers_health(self, call: Call) -> Response:
        """Return the state of workers' machines."""
        return answer(self._store.workers_health())

    def report_incident(self, call: Call) -> Response:
        """Record an incident of a worker's machine."""
        self._store.report_incident(call.body(health.IncidentRequest))
        return done()

    def report_pace(self, call: Call, name: str) -> Response:
        """Record a worker's pace relative to the others."""
        self._store.report_pace(checked_name(name), call.body(health.PaceRequest))
        return done()

    def quarantine_worker(self, call: Call, name: str) -> Response:
        """Quarantine a worker, so that it gets no tasks."""
        request = stamped_health(call.body(health.QuarantineWorkerRequest), call.principal)
        found = self._store.quarantine_worker(checked_name(name), request)
        self._note_person(call, request.term, f"quarantined worker {name}: {request.reason}")
        return answer(found)

    def release_worker(self, call: Call, name: str) -> Response:
        """Release a worker from quarantine."""
        request = stamped_health(call.body(health.ReleaseRequest), call.principal)
        found = self._store.release_worker(checked_name(name), request)
        self._note_person(call, request.term, f"released worker {name}")
        return answer(found)

    def request_check(self, call: Call, name: str) -> Response:
        """Request a check of a worker's machine."""
        request = stamped_health(call.body(health.CheckRequest), call.principal)
        found = self._store.request_check(checked_name(name), request)
        self._note_person(call, request.term, f"had worker {name} check its machine")
        return answer(found)

    def _note_person(self, call: Call, term: int | None, what: str) -> None:
        if term is None:  # the controller's actions are recorded as incidents
            self._note(call, what)

    def report_check(self, call: Call, name: str) -> Response:
        """Store the result of a worker's check."""
        self._store.report_check(checked_name(name), call.body(health.CheckResult))
        return done()

    def inbox(self, call: Call, name: str) -> Response:
        """Return a worker's inbox after a cursor; can wait for an entry."""
        items = self._store.inbox(checked_name(name), call.args.get("incarnation", ""), *call.cursor())
        return spliced("items", items)

    def trials(self, call: Call) -> Response:
        """Return stored trial results by their keys."""
        return answer(api.TrialsAnswer(records=self._store.trials(call.body(api.TrialsRequest).keys)))

    def keep_trial(self, call: Call) -> Response:
        """Store a trial's result."""
        record = call.body(TrialRecord)
        self._store.keep_trial(record)
        return answer(record)

    def forget_trials(self, call: Call) -> Response:
        """Remove stored trial results by their keys."""
        return answer(
            api.ForgottenAnswer(forgotten=self._store.forget_trials(call.body(api.TrialsRequest).keys))
        )

    def put_code(self, call: Call, sha256: str) -> Response:
        """Store user code under its hash."""
        record = call.body(CodeRecord)
        if record.sha256 != sha256:
            raise errors.BadRequestError(
                f"the path names the hash {sha256}, the body names {record.sha256}: give one hash"
            )
        return answer(self._store.put_code(stamped_code(record, call.principal)))

    def code(self, call: Call, sha256: str) -> Response:
        """Return user code by its hash."""
        return answer(self._store.code(sha256))

    def put_archive(self, call: Call, sha256: str) -> Response:
        """Store a code archive under its hash."""
        self._store.put_archive(sha256, call.content)
        return done()

    def archive(self, call: Call, sha256: str) -> Response:
        """Return a code archive by its hash."""
        return bytes_answer(self._store.archive(sha256))


@cache
def openapi_document(version: str) -> str:
    """Return the OpenAPI document of all routes."""
    return document(
        {"title": "Cerebro key-value store", "version": version}, STORE, (400, 401, 403, 413, 503)
    )


def package_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("cerebro-platform")
    except PackageNotFoundError:
        return "0"
