"""The client of kvs_api: the only way any other part of Cerebro reads or changes shared state.

Owns connections, the token and patience: every call is safe to repeat (steps are compare-and-set, appends carry their
own identity), so a call that meets a refused connection, a 502, 503 or 504 is sent again until `patience_s` has passed.
Safe for use by several threads; a blocking read occupies one pooled connection.
"""

from __future__ import annotations

import json
import ssl
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote

import urllib3
from pydantic import BaseModel, TypeAdapter, ValidationError

from cerebro import errors
from cerebro.contract import SCHEMA_VERSION, api
from cerebro.contract.events import ClientEvent, Event, LivePoint
from cerebro.contract.records import (
    AuditEntry,
    CodeRecord,
    ExperimentRecord,
    ExperimentSummary,
    Reclaim,
    SizeRequest,
    Troubles,
    Unreadable,
    UsageSample,
    WorkerRecord,
    WorkerStatus,
)
from cerebro.contract.tasks import InboxItem

Answer = TypeVar("Answer", bound=BaseModel)

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)

_TRY_AGAIN = frozenset({502, 503, 504})
_MAX_PAUSE_S = 0.5
_SUCCESS = 300
_CONNECT_S = 5.0


class _AnyHealth(BaseModel):
    """What both kvs_api and the dispatcher say of themselves; only the latter names an `api`."""

    status: str
    api: str = ""


class KvsClient:
    """Typed calls to kvs_api at `address`.

    Args:
        address: base URL, such as ``http://127.0.0.1:7070``.
        token: bearer token.
        patience_s: how long a call keeps trying while the service or its store is away.
        timeout_s: how long one try waits for an answer, beyond the time a read may block; a server that hangs counts as
            away then.
        pool: connections kept open; at least one per thread that blocks.
        gone: tells, when patience has ended, why nothing answers and what to do; empty if it does not know.
        ca_file: certificates to trust for ``https://`` instead of the system's; ``SSL_CERT_FILE`` names the system's.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        patience_s: float = 60.0,
        timeout_s: float = 30.0,
        pool: int = 8,
        gone: Callable[[], str] = str,
        ca_file: str | None = None,
    ) -> None:
        self.address = address.rstrip("/")
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._gone = gone
        self._http = urllib3.PoolManager(
            maxsize=pool,
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/json",
                # Nothing reads these two; parsing them would take the server a tenth of its time.
                "Accept-Encoding": urllib3.util.SKIP_HEADER,
                "User-Agent": urllib3.util.SKIP_HEADER,
            },
            # Retries are ours: urllib3's would not tell a store that is away from a refused request.
            retries=False,
            ca_certs=ca_file,
        )

    def close(self) -> None:
        """Close pooled connections. Calling twice is safe."""
        self._http.clear()

    # --- health and leadership -------------------------------------------------------------------

    def health(self) -> api.Health:
        """The service's state; the one call that needs no token.

        Raises:
            ConflictError: the service speaks another schema version.
        """
        health = self._call("GET", "/health", api.Health)
        if health.schema_version != SCHEMA_VERSION:
            raise errors.ConflictError(
                f"kvs_api at {self.address} speaks schema {health.schema_version}, this program {SCHEMA_VERSION}: "
                "run the same version of Cerebro on both sides"
            )
        return health

    def api_prefix(self) -> str:
        """Where below this address the store's API is: nowhere for kvs_api itself, a path for a dispatcher before it.

        Raises:
            ClusterError: whatever answers there, it is no Cerebro.
        """
        try:
            answer = _AnyHealth.model_validate_json(self._send("GET", "/health", None, 0.0))
        except (ValueError, errors.BadRequestError, errors.NotFoundError) as cause:
            raise errors.ClusterError(
                f"{self.address} answers, but not as a Cerebro: give the address of its dispatcher or its kvs_api, "
                f"with the scheme (http or https) that it has ({str(cause)[:200]})"
            ) from cause
        return answer.api

    def lead(self, holder: str, ttl_s: float) -> api.LeaderAnswer:
        """Take or keep the controller's leadership for `ttl_s` seconds."""
        return self._call(
            "POST", "/v1/leader", api.LeaderAnswer, api.LeaderRequest(holder=holder, ttl_s=ttl_s)
        )

    # --- experiments -----------------------------------------------------------------------------

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord:
        """Create, or find again the same experiment.

        Raises:
            ConflictError: an experiment of that name with other locators or code exists.
        """
        return self._call("PUT", f"/v1/experiments/{_quoted(record.name)}", ExperimentRecord, record)

    def experiment(self, name: str) -> ExperimentRecord:
        """The record of one experiment; `NotFoundError` if there is none."""
        return self._call("GET", f"/v1/experiments/{_quoted(name)}", ExperimentRecord)

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """All experiments, newest event first."""
        return self._call("GET", "/v1/experiments", api.ExperimentsAnswer).experiments

    def append(self, experiment: str, event: ClientEvent, *, is_unread: bool = False) -> int:
        """Append a client's event and return its seq: once, however often the store has to be asked.

        The same `RunRequested` from another call, and a second `DeletionRequested`, return the first one's seq.

        Args:
            is_unread: the log cannot be read, so a deletion takes runs of it that wait off the queue by itself.

        Raises:
            NotFoundError: there is no such experiment, or no such run in it.
            ConflictError: the run id is taken, a run is open that is to be deleted, or the experiment is being deleted.
        """
        path = f"/v1/experiments/{_quoted(experiment)}/events{'?unread=1' if is_unread else ''}"
        once = {api.ONCE: uuid.uuid4().hex}
        content = self._send("POST", path, event.model_dump_json().encode(), 0.0, once)
        return api.AppendAnswer.model_validate_json(content).seq

    def events(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[Event, ...]:
        """Events with seq > `after`, oldest first, at most 1,000; blocks up to `wait_s` seconds while there is none.

        Raises:
            UnreadableError: one of them cannot be read; it has those before that one.
        """
        path = f"/v1/experiments/{_quoted(experiment)}/events?after={after}"
        content = self._send("GET", f"{path}&wait_s={wait_s}", None, wait_s)
        try:
            return api.EventsAnswer.model_validate_json(content).events
        except ValidationError:
            return _readable(experiment, self._send("GET", f"{path}&check=1", None, 0.0))

    def live(self, experiment: str, after: int = 0, *, wait_s: float = 0.0) -> tuple[LivePoint, ...]:
        """Live points with seq > `after`, oldest first, at most 1,000."""
        path = f"/v1/experiments/{_quoted(experiment)}/live?after={after}&wait_s={wait_s}"
        return self._call("GET", path, api.LiveAnswer, wait_s=wait_s).points

    # --- controller ------------------------------------------------------------------------------

    def watch(self, cursors: dict[str, int], cluster: int, wait_s: float) -> api.WatchAnswer:
        """Block until any named log or the cluster has news.

        Raises:
            UnreadableError: as `events`, of any of the logs.
        """
        body = api.WatchRequest(cursors=cursors, cluster=cluster, wait_s=wait_s)
        content = self._send("POST", "/v1/watch", body.model_dump_json().encode(), wait_s)
        try:
            return api.WatchAnswer.model_validate_json(content)
        except ValidationError:
            news = {name: events for name, after in cursors.items() if (events := self.events(name, after))}
            return api.WatchAnswer(events=news, cluster=cluster)

    def decide(self, experiment: str, request: api.DecideRequest) -> api.DecideAnswer:
        """Apply the controller's steps atomically.

        Raises:
            ConflictError: another controller leads now.
            UnreadableError: an event after the cursor cannot be read. The steps were applied all the same.
        """
        path = f"/v1/experiments/{_quoted(experiment)}/decisions"
        content = self._send("POST", path, request.model_dump_json().encode(), 0.0)
        try:
            return api.DecideAnswer.model_validate_json(content)
        except ValidationError:
            after = request.after
            while events := self.events(experiment, after):
                after = events[-1].seq
            raise  # the events are well: it is the outcomes that are not

    def quarantine(self, experiment: str, problem: Unreadable, term: int) -> None:
        """Quarantine an experiment that cannot be read: its runs leave the queue, and clients are told why.

        Nothing of its log is touched. Doing it twice is safe; the first reason stays.

        Args:
            term: the controller's leadership.

        Raises:
            NotFoundError: it is gone.
            ConflictError: another controller leads now.
        """
        body = api.QuarantineRequest(term=term, problem=problem).model_dump_json().encode()
        self._send("PUT", f"/v1/experiments/{_quoted(experiment)}/quarantine", body, 0.0)

    def restore(self, experiment: str) -> None:
        """Put an experiment back that was quarantined: its runs are in the queue again, and its log is read anew.

        If it still cannot be read, it is quarantined again a moment later.

        Raises:
            NotFoundError: there is no such experiment.
            ConflictError: it was not quarantined.
        """
        self._send("DELETE", f"/v1/experiments/{_quoted(experiment)}/quarantine", None, 0.0)

    def queue(self) -> tuple[api.QueueEntry, ...]:
        """Open runs of all experiments, oldest first."""
        return self._call("GET", "/v1/queue", api.QueueAnswer).runs

    def deleting(self) -> tuple[str, ...]:
        """Experiments that are to be deleted."""
        return self._call("GET", "/v1/queue", api.QueueAnswer).deleting

    def delete_experiment(self, name: str, term: int) -> None:
        """Forget an experiment whose deletion was wished, once its files are gone; leaves an entry in `audit`.

        Args:
            term: the controller's leadership.

        Raises:
            NotFoundError: it is gone already.
            ConflictError: nobody wished it, or another controller leads now.
        """
        self._send("DELETE", f"/v1/experiments/{_quoted(name)}?term={term}", None, 0.0)

    def reclaim(self) -> Reclaim:
        """Data sets that no experiment uses any more."""
        return self._call("GET", "/v1/reclaim", Reclaim)

    def audit(self) -> tuple[AuditEntry, ...]:
        """What was done that no experiment's log can tell: the newest entries, oldest first."""
        return self._call("GET", "/v1/audit", api.AuditAnswer).entries

    # --- workers ---------------------------------------------------------------------------------

    def register(self, record: WorkerRecord) -> WorkerRecord:
        """Register a worker's new incarnation; empties its inbox and fences the previous incarnation."""
        return self._call("PUT", f"/v1/workers/{_quoted(record.worker)}", WorkerRecord, record)

    def workers(self) -> tuple[WorkerStatus, ...]:
        """All registered workers."""
        return self._call("GET", "/v1/workers", api.WorkersAnswer).workers

    def remove_worker(self, worker: str, incarnation: str | None = None) -> None:
        """Forget a worker that is gone for good. What only its volume held is made anew elsewhere when it is needed.

        Args:
            incarnation: the one that is meant; by default whichever is registered.

        Raises:
            NotFoundError: nobody of that name is registered.
            ConflictError: another incarnation is.
        """
        query = f"?incarnation={_quoted(incarnation)}" if incarnation else ""
        self._send("DELETE", f"/v1/workers/{_quoted(worker)}{query}", None, 0.0)

    def report(self, worker: str, request: api.ReportRequest) -> api.ReportAnswer:
        """Send steps, live points and a heartbeat."""
        return self._call("POST", f"/v1/workers/{_quoted(worker)}/reports", api.ReportAnswer, request)

    def usage(self, worker: str) -> tuple[UsageSample, ...]:
        """What a worker used of its machine over the last day, oldest first; `NotFoundError` if there is none."""
        return self._call("GET", f"/v1/workers/{_quoted(worker)}/usage", api.UsageAnswer).samples

    def inbox(self, worker: str, incarnation: str, after: int, *, wait_s: float) -> tuple[InboxItem, ...]:
        """Inbox entries of this incarnation with seq > `after`; blocks up to `wait_s` seconds."""
        path = f"/v1/workers/{_quoted(worker)}/inbox?incarnation={_quoted(incarnation)}&after={after}&wait_s={wait_s}"
        return self._call("GET", f"{path}&places=1", api.InboxAnswer, wait_s=wait_s).items

    # --- the cluster's size ----------------------------------------------------------------------

    def size(self) -> SizeRequest | None:
        """The wish for a number of workers that is pending or was refused, if there is one."""
        return self._call("GET", "/v1/cluster/size", api.SizeAnswer).wish

    def ask_size(self, wish: SizeRequest) -> None:
        """Wish so many workers, in place of any earlier wish; or, with a `problem`, answer that very wish.

        Raises:
            ConflictError: the wish that is answered was replaced.
        """
        self._call("PUT", "/v1/cluster/size", SizeRequest, wish)

    def drop_size(self, workers: int) -> None:
        """Take the wish for so many workers away; `ConflictError` if there is no such wish."""
        self._send("DELETE", f"/v1/cluster/size?workers={workers}", None, 0.0)

    def troubles(self) -> Troubles:
        """Why workers that are wanted do not start."""
        return self._call("GET", "/v1/cluster/troubles", Troubles)

    def tell_troubles(self, troubles: Troubles) -> None:
        """Replace what is known of workers that do not start; the controller does."""
        self._call("PUT", "/v1/cluster/troubles", Troubles, troubles)

    # --- code ------------------------------------------------------------------------------------

    def put_code(self, record: CodeRecord) -> CodeRecord:
        """Store encoded user code under its hash; storing it twice is harmless."""
        return self._call("PUT", f"/v1/code/{_quoted(record.sha256)}", CodeRecord, record)

    def code(self, sha256: str) -> CodeRecord:
        """Encoded user code; `NotFoundError` if there is none."""
        return self._call("GET", f"/v1/code/{_quoted(sha256)}", CodeRecord)

    def put_archive(self, sha256: str, content: bytes) -> None:
        """Store a code archive's bytes under their hash; storing them twice is harmless."""
        kind = {"Content-Type": "application/octet-stream"}
        self._send("PUT", f"/v1/archives/{_quoted(sha256)}", content, 0.0, kind)

    def archive(self, sha256: str) -> bytes:
        """A code archive's bytes; `NotFoundError` if there is none."""
        return self._send("GET", f"/v1/archives/{_quoted(sha256)}", None, 0.0)

    # --- mechanism -------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        answer: type[Answer],
        body: BaseModel | None = None,
        *,
        wait_s: float = 0.0,
    ) -> Answer:
        content = body.model_dump_json().encode() if body is not None else None
        return answer.model_validate_json(self._send(method, path, content, wait_s))

    def _send(
        self,
        method: str,
        path: str,
        content: bytes | None,
        wait_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        deadline = time.monotonic() + self._patience_s
        pause_s = 0.02
        while True:
            away: urllib3.exceptions.HTTPError | None = None
            try:
                response = self._http.request(
                    method,
                    self.address + path,
                    body=content,
                    headers={**self._http.headers, **headers} if headers else None,
                    timeout=urllib3.Timeout(
                        connect=min(_CONNECT_S, self._timeout_s), read=wait_s + self._timeout_s
                    ),
                )
            except urllib3.exceptions.HTTPError as cause:
                if cause.args and isinstance(cause.args[0], ssl.SSLCertVerificationError):
                    raise errors.ClusterError(
                        f"the certificate of {self.address} is not trusted ({cause.args[0].verify_message}): name the "
                        "file of the authority that signed it in SSL_CERT_FILE or REQUESTS_CA_BUNDLE"
                    ) from cause
                problem, away = f"{type(cause).__name__}: {cause}", cause
                status = 0
            else:
                status = response.status
                if status < _SUCCESS:
                    return response.data
                if status not in _TRY_AGAIN:
                    raise _error_of(status, response.data)
                problem = f"HTTP {status}"
            if time.monotonic() + pause_s > deadline:
                raise errors.StoreUnavailableError(
                    self._gone()
                    or f"kvs_api at {self.address} did not answer for {self._patience_s:g} s ({problem}): "
                    "see `cerebro status` and `cerebro logs kvs_api`"
                ) from away
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)


def _readable(experiment: str, content: bytes) -> tuple[Event, ...]:
    """The events of an answer.

    Raises:
        UnreadableError: one cannot be read.
    """
    found: list[Event] = []
    for entry in json.loads(content)["events"]:
        try:
            found.append(_EVENT.validate_json(json.dumps(entry)))
        except ValidationError as cause:
            reason = errors.found_in(cause.errors())
            if cause.errors()[0]["type"].startswith("union_tag"):
                reason = f"it is of type {str(entry.get('type'))[:60]!r}, which is not known here"
            raise errors.UnreadableError.of(experiment, entry.get("seq", 0), reason, found) from cause
    return tuple(found)


def _quoted(text: str) -> str:
    """A name as a part of a URL, whatever a user typed; the server refuses what is no name."""
    return quote(text, safe="")


def _error_of(status: int, content: bytes) -> errors.CerebroError:
    try:
        problem = api.Problem.model_validate_json(content)
    except ValueError:
        return errors.BadRequestError(f"kvs_api answered HTTP {status} without a reason: {content[:200]!r}")
    kind = getattr(errors, problem.error, errors.BadRequestError)
    return (
        kind(problem.message)
        if issubclass(kind, errors.CerebroError)
        else errors.BadRequestError(problem.message)
    )
