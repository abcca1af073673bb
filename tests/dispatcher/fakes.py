"""Doubles for the dispatcher: an in-memory store, a manual clock and a test browser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Literal

from flask import Flask
from flask.testing import FlaskClient
from jinja2.bccache import Bucket, BytecodeCache
from werkzeug.test import TestResponse

from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.accounts.identity import MadeToken, Principal, TokenRecord, TokenRequest
from cerebro.contract.accounts.quotas import Usage
from cerebro.contract.events import ClientEvent, Event, LivePoint, RunRequested
from cerebro.contract.records import (
    AuditEntry,
    CodeRecord,
    ExperimentRecord,
    ExperimentSummary,
    Reclaim,
    SizeRequest,
    UsageSample,
    WorkerSetStatus,
    WorkerStatus,
)
from cerebro.contract.rest import api
from cerebro.contract.stored.health import HealthAnswer
from cerebro.contract.stored.notifications import (
    Coverage,
    NotificationsAnswer,
    NotificationTarget,
    TargetRequest,
    TargetStatus,
    masked,
)
from cerebro.contract.stored.registry import AliasRequest, ModelVersion, RegisteredModel, Registration
from cerebro.contract.stored.segments import SegmentsAnswer
from cerebro.errors import ConflictError, NotFoundError, StoreUnavailableError
from cerebro.state import ExperimentState
from dispatcher.app import create_app
from dispatcher.settings import Links, Settings
from tests.dispatcher.stories import NOW, Story

TOKEN = "a-long-token-of-this-cluster"


def settings(**changes: object) -> Settings:
    """Build settings for a dispatcher on a laptop."""
    values: dict[str, object] = {
        "host": "127.0.0.1",
        "port": 7080,
        "server": "http://127.0.0.1:7070",
        "token": TOKEN,
        "links": Links(tensorboard="http://127.0.0.1:6006"),
    }
    return Settings(**(values | changes))  # type: ignore[arg-type]


@dataclass(kw_only=True)
class FakeStore:
    """An in-memory store with the rules that pages depend on. `is_away` makes every call fail as in an outage."""

    records: dict[str, ExperimentRecord] = field(default_factory=dict)
    logs: dict[str, list[Event]] = field(default_factory=dict)
    archives: dict[str, bytes] = field(default_factory=dict)
    codes: dict[str, CodeRecord] = field(default_factory=dict)
    points: dict[str, list[LivePoint]] = field(default_factory=dict)
    statuses: list[WorkerStatus] = field(default_factory=list)
    samples: dict[str, tuple[UsageSample, ...]] = field(default_factory=dict)
    waiting: tuple[api.QueueEntry, ...] = ()
    open_runs: int = 8
    attended: api.Attended = field(default_factory=api.Attended)
    entries: tuple[AuditEntry, ...] = ()
    registered: tuple[RegisteredModel, ...] = ()
    targets: dict[str, NotificationTarget] = field(default_factory=dict)
    results: dict[str, TargetStatus] = field(default_factory=dict)
    registrations: dict[str, ModelVersion] = field(default_factory=dict)
    copying: Literal["copying", "ready", "failed"] = "ready"
    unneeded: Reclaim = field(default_factory=Reclaim)
    worker_set: WorkerSetStatus = field(default_factory=WorkerSetStatus)
    machines: HealthAnswer = field(default_factory=HealthAnswer)
    size_asked: SizeRequest | None = None
    is_away: bool = False
    problem: Exception | None = None
    problems: dict[str, Exception] = field(default_factory=dict)
    told_stacks: str | None = "Thread 1: in train"
    calls: list[str] = field(default_factory=list)
    said: dict[str, int] = field(default_factory=dict)
    snapshots: dict[tuple[str, str], bytes] = field(default_factory=dict)
    ended_sessions: set[str] = field(default_factory=set)

    def add(self, story: Story) -> None:
        """Store an experiment with its log."""
        self.records[story.record.name] = story.record
        self.logs[story.record.name] = story.events

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if self.is_away:
            raise StoreUnavailableError("kvs_api at http://127.0.0.1:7070 did not answer for 3 s")
        if problem := self.problems.get(call, self.problem):
            raise problem

    def health(self) -> api.Health:
        self._called("health")
        return api.Health(status="ok", schema_version=SCHEMA_VERSION, version="0")

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord:
        self._called("create_experiment")
        known = self.records.setdefault(record.name, record.model_copy(update={"created": NOW}))
        if (known.locators, known.archive) != (record.locators, record.archive):
            raise ConflictError(f"experiment {record.name!r} exists already with other locators")
        return known

    def experiment(self, name: str) -> ExperimentRecord:
        self._called("experiment")
        if name not in self.records:
            raise NotFoundError(f"no experiment {name!r}")
        return self.records[name]

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        self._called("experiments")
        return tuple(
            ExperimentSummary(
                experiment=record,
                last_seq=len(self.logs.get(name, [])),
                last_event=record.created,
                open_runs=(),
            )
            for name, record in self.records.items()
        )

    def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
        self._called("events")
        return tuple(self.logs.get(experiment, [])[after : after + 1000])

    def segments(self, experiment: str) -> SegmentsAnswer:
        self._called("segments")
        return SegmentsAnswer()

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        if self.is_away:
            raise StoreUnavailableError("kvs_api at http://127.0.0.1:7070 did not answer for 3 s")
        return self.snapshots.get((experiment, of_format))

    def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
        self._called("live")
        return tuple(self.points.get(experiment, [])[after : after + 1000])

    def append(self, experiment: str, event: ClientEvent, *, is_unread: bool = False, once: str = "") -> int:
        """Fold the event first, so that no test uses an invalid log."""
        self._called("append")
        if once in self.said:
            return self.said[once]
        log = self.logs.setdefault(experiment, [])
        if isinstance(event, RunRequested):
            for known in log:
                if isinstance(known, RunRequested) and known.run == event.run:
                    if known.model_copy(update={"seq": 0, "time": 0.0}) == event:
                        return known.seq
                    raise ConflictError(f"run {event.run!r} was requested already")
        state = ExperimentState(name=experiment)
        numbered = event.model_copy(update={"seq": len(log) + 1, "time": NOW})
        for each in (*log, numbered):
            state.apply(each)
        log.append(numbered)
        if once:
            self.said[once] = numbered.seq
        return numbered.seq

    def request_stacks(self, experiment: str, request: api.StacksRequest) -> api.StacksRequested:
        self._called("request_stacks")
        return api.StacksRequested(worker="worker-0", attempt=1)

    def stacks(self, experiment: str, question: str) -> str | None:
        self._called("stacks")
        return self.told_stacks

    def restore(self, experiment: str) -> None:
        self._called("restore")

    def queued(self) -> api.QueueAnswer:
        self._called("queue")
        return api.QueueAnswer(runs=self.waiting, open_runs=self.open_runs, attended=self.attended)

    def workers(self) -> tuple[WorkerStatus, ...]:
        self._called("workers")
        return tuple(self.statuses)

    def usage(self, worker: str) -> tuple[UsageSample, ...]:
        self._called("usage")
        return self.samples.get(worker, ())

    def workers_health(self) -> HealthAnswer:
        self._called("workers_health")
        return self.machines

    def worker_set_status(self) -> WorkerSetStatus:
        self._called("pod_problems")
        return self.worker_set

    def size_request(self) -> SizeRequest | None:
        self._called("size")
        return self.size_asked

    def registry(self) -> tuple[RegisteredModel, ...]:
        self._called("registry")
        return self.registered

    def registered_model(self, name: str) -> RegisteredModel:
        self._called("registered_model")
        for model in self.registered:
            if model.name == name:
                return model
        raise NotFoundError(f"no model is registered as {name!r}")

    def notifications(self, *, acts_for: str = "") -> NotificationsAnswer:
        self._called("notifications")
        return NotificationsAnswer(targets=tuple(self.targets.values()), statuses=self.results)

    def add_notification(self, request: TargetRequest) -> NotificationTarget:
        self._called("add_notification")
        target = NotificationTarget(
            id=f"target-{len(self.targets) + 1}",
            address=masked(request.url),
            events=request.events,
            coverage=Coverage.PROJECT if request.project else Coverage.CLUSTER,
            project=request.project,
            created=NOW,
        )
        self.targets[target.id] = target
        return target

    def remove_notification(self, target: str) -> None:
        self._called("remove_notification")
        if target not in self.targets:
            raise NotFoundError(f"no notification target {target!r}")
        del self.targets[target]

    def test_notification(self, target: str) -> NotificationTarget:
        """Request a test message, which stays unanswered until the test changes `results`."""
        self._called("test_notification")
        if target not in self.targets:
            raise NotFoundError(f"no notification target {target!r}")
        self.targets[target] = self.targets[target].model_copy(update={"tested": NOW})
        return self.targets[target]

    def register_model(self, name: str, registration: Registration, *, once: str = "") -> ModelVersion:
        """Add a version whose copy has the outcome `copying`."""
        self._called("register_model")
        if once in self.registrations:
            return self.registrations[once]
        known = next((model for model in self.registered if model.name == name), None)
        known = known or RegisteredModel(name=name, versions=())
        version = ModelVersion(
            name=name,
            version=len(known.versions) + 1,
            state=self.copying,
            error="no space left" if self.copying == "failed" else "",
            created=registration.epoch,
            source=registration,
            experiment=self.records[registration.experiment],
            checkpoint=registration.checkpoint if self.copying == "ready" else None,
        )
        if once:
            self.registrations[once] = version
        self._replace(known.model_copy(update={"versions": (*known.versions, version)}))
        return version

    def move_alias(self, name: str, request: AliasRequest) -> RegisteredModel:
        self._called("move_alias")
        known = self.registered_model(name)
        aliases = {alias: number for alias, number in known.aliases.items() if alias != request.alias}
        if request.version is not None:
            if not any(each.version == request.version and each.state == "ready" for each in known.versions):
                raise ConflictError(f"version {request.version} of {name} is not ready")
            aliases[request.alias] = request.version
        return self._replace(known.model_copy(update={"aliases": aliases}))

    def _replace(self, model: RegisteredModel) -> RegisteredModel:
        others = [each for each in self.registered if each.name != model.name]
        self.registered = tuple(sorted((*others, model), key=lambda each: each.name))
        return model

    def audit(self) -> tuple[AuditEntry, ...]:
        self._called("audit")
        return self.entries

    def whoami(self, *, acts_for: str = "", token: str = "") -> Principal:
        raise NotFoundError("this cluster has no users")

    def tokens(self, *, acts_for: str = "") -> tuple[TokenRecord, ...]:
        raise NotFoundError("this cluster has no users")

    def make_token(self, request: TokenRequest) -> MadeToken:
        raise NotFoundError("this cluster has no users")

    def revoke_token(self, token: str) -> None:
        raise NotFoundError("this cluster has no users")

    def quotas(self) -> tuple[Usage, ...]:
        return ()

    def end_session(self, session: str) -> None:
        self._called("end_session")
        self.ended_sessions.add(session)

    def has_session_ended(self, session: str) -> bool:
        if self.is_away:
            raise StoreUnavailableError("kvs_api at http://127.0.0.1:7070 did not answer for 3 s")
        return session in self.ended_sessions

    def redeem_sign_in_code(self, code: str, *, is_preview: bool = False) -> api.SignedIn:
        self._called("redeem_sign_in_code")
        raise NotFoundError("this sign-in link is unknown here or has expired")

    def note_audit(self, what: str) -> None:
        raise NotFoundError("this cluster has no users")

    def reclaim(self) -> Reclaim:
        self._called("reclaim")
        return self.unneeded

    def code(self, sha256: str) -> CodeRecord:
        self._called("code")
        if sha256 not in self.codes:
            raise NotFoundError(f"no code {sha256}")
        return self.codes[sha256]

    def put_code(self, code: CodeRecord) -> CodeRecord:
        self._called("put_code")
        return self.codes.setdefault(code.sha256, code)

    def put_archive(self, sha256: str, content: bytes) -> None:
        self._called("put_archive")
        self.archives[sha256] = content

    def archive(self, sha256: str) -> bytes:
        self._called("archive")
        if sha256 not in self.archives:
            raise NotFoundError(f"no archive {sha256}")
        return self.archives[sha256]


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Browser:
    """A Flask test client that asks for HTML and carries form tokens, as a browser does."""

    def __init__(self, app: Flask, host: str = "127.0.0.1:7080") -> None:
        self.client: FlaskClient = app.test_client()
        self._where = {"base_url": f"http://{host}", "headers": {"Accept": "text/html,*/*"}}

    def get(self, path: str) -> TestResponse:
        return self.client.get(path, buffered=True, **self._where)

    def post(self, path: str, fields: Mapping[str, object], *, form: str | None = None) -> TestResponse:
        """Open `form` (default: `path`), read its form token and send the fields."""
        page = self.get(form or path).text
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        return self.send(path, {"csrf": found[1] if found else "", **fields})

    def send(self, path: str, fields: Mapping[str, object]) -> TestResponse:
        """Send exactly these fields."""
        return self.client.post(path, data=fields, content_type="multipart/form-data", **self._where)

    def sign_in(self) -> Browser:
        answer = self.post("/sign-in", {"token": TOKEN})
        assert answer.status_code == 303
        return self


class _Compiled(BytecodeCache):
    """Compiled templates, shared by all applications of a process since compiling is slow."""

    def __init__(self) -> None:
        self._known: dict[str, CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._known.get(f"{bucket.key} {bucket.checksum}")

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        self._known[f"{bucket.key} {bucket.checksum}"] = bucket.code


_COMPILED = _Compiled()


@dataclass(kw_only=True)
class Bench:
    """An app over a fake store, with clocks the test controls."""

    store: FakeStore = field(default_factory=FakeStore)
    clock: Clock = field(default_factory=Clock)
    monotonic: Clock = field(default_factory=Clock)
    settings: Settings = field(default_factory=settings)

    def __post_init__(self) -> None:
        self.app = create_app(self.settings, self.store, clock=self.clock, monotonic=self.monotonic)
        self.app.testing = False
        self.app.jinja_env.bytecode_cache = _COMPILED

    def browser(self) -> Browser:
        """Open a browser without a session."""
        return Browser(self.app)

    def signed_in(self) -> Browser:
        """Open a browser with a session."""
        return self.browser().sign_in()
