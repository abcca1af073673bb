"""The store over Redis: translates typed requests into calls of ``steps.lua`` and plain reads.

Owns the mapping between contract and keys. Knows nothing of HTTP. Safe for use by many threads; a blocking read holds
one pooled connection. Redis runs with the append-only file on and ``appendfsync always``: what was answered is on disk.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from typing import Any, TypeVar

import redis
from pydantic import BaseModel
from redis.backoff import NoBackoff
from redis.retry import Retry

from cerebro import errors
from cerebro.contract import api
from cerebro.contract.events import ClientEvent, RunRequested
from cerebro.contract.records import (
    CodeRecord,
    ExperimentRecord,
    ExperimentSummary,
    Holding,
    SizeRequest,
    Troubles,
    WorkerRecord,
    WorkerStatus,
)
from cerebro.draining import Draining
from kvs_api import keys, steps

PAGE = 1000
"""Most entries one read returns."""

_ANSWER_S = 15.0
"""A Redis that is silent for longer counts as away."""

_SLICE_S = 1.0
"""A blocking read asks Redis in slices of this length, so that it ends soon when the service does."""

Model = TypeVar("Model", bound=BaseModel)
_Entries = list[tuple[bytes, dict[bytes, bytes]]]


class Store:
    """All reads and changes of shared state.

    Args:
        url: Redis URL (``redis://`` or ``unix://``).
        draining: once it is wanted, blocking reads answer with what they have.
    """

    def __init__(self, url: str, draining: Draining | None = None) -> None:
        self._draining = draining or Draining()
        # No retries: a repeated call is the client's business, and it waits between two of them.
        patience: Any = {"socket_connect_timeout": 5, "retry": Retry(NoBackoff(), 0)}
        self._redis: redis.Redis = redis.Redis.from_url(url, socket_timeout=_ANSWER_S, **patience)
        # The library's own limit, 5 s, would end a blocking read before its time.
        self._blocking: redis.Redis = redis.Redis.from_url(
            url, socket_timeout=api.MAX_WAIT_S + _ANSWER_S, **patience
        )
        script = resources.files("kvs_api").joinpath("steps.lua").read_text()
        self._steps = self._redis.register_script(script)

    def ping(self) -> bool:
        """Whether Redis answers and has loaded its file."""
        try:
            return bool(self._redis.ping())
        except redis.RedisError:
            return False

    # --- experiments -----------------------------------------------------------------------------

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord:
        """Create, or return the same experiment; `ConflictError` when the name holds another one."""
        with _translated():
            seconds, micros = self._redis.time()
            record = record.model_copy(update={"created": seconds + micros / 1e6})
            key = keys.experiment(record.name)
            if self._redis.set(key, record.model_dump_json(), nx=True):
                self._redis.zadd(keys.EXPERIMENTS, {record.name: record.created})
                return record
            known = self.experiment(record.name)
            # A crash between the two writes above would leave the experiment out of the list: write it again.
            self._redis.zadd(keys.EXPERIMENTS, {known.name: known.created})
        if (known.locators, known.archive) != (record.locators, record.archive):
            what = "dataset locators" if known.locators != record.locators else "code archive"
            raise errors.ConflictError(
                f"experiment {record.name!r} exists already with another {what}: choose another name, or use "
                f"Experiment.attach({record.name!r}) to go on with the existing one"
            )
        return known

    def experiment(self, name: str) -> ExperimentRecord:
        """One experiment's record."""
        return self._document(keys.experiment(name), ExperimentRecord, f"experiment {name!r}")

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """All experiments, newest event first."""
        with _translated():
            names = [_text(name) for name in self._redis.zrange(keys.EXPERIMENTS, 0, -1)]
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.get(keys.experiment(name))
                pipe.xrevrange(keys.log(name), count=1)
            pipe.lrange(keys.QUEUE, 0, -1)
            answers = pipe.execute()
        runs = [_text(entry) for entry in answers.pop()]
        summaries = []
        for position, name in enumerate(names):
            record = ExperimentRecord.model_validate_json(answers[2 * position])
            newest = answers[2 * position + 1]
            summaries.append(
                ExperimentSummary(
                    experiment=record,
                    last_seq=_seq(newest[0][0]) if newest else 0,
                    last_event=int(newest[0][1][b"t"]) / 1000 if newest else record.created,
                    open_runs=tuple(run.split("/", 1)[1] for run in runs if run.startswith(f"{name}/")),
                )
            )
        return tuple(sorted(summaries, key=lambda summary: -summary.last_event))

    def append(self, experiment: str, event: ClientEvent) -> int:
        """Append a client's event; see `KvsClient.append`."""
        self.experiment(experiment)
        content = event.model_dump_json(exclude=steps.UNNUMBERED)
        call: dict[str, Any] = {
            "call": "append",
            "log": keys.log(experiment),
            "runs": keys.log(experiment) + ":runs",
            "queue": keys.QUEUE,
            "cluster": keys.CLUSTER,
            "event": content,
        }
        if isinstance(event, RunRequested):
            call |= {
                "run": event.run,
                "entry": f"{experiment}/{event.run}",
                "hash": hashlib.sha256(content.encode()).hexdigest(),
            }
        else:
            call["about"] = event.run
        answer = self._run(call)
        if "unknown" in answer:
            raise errors.NotFoundError(f"no run {event.run!r} in experiment {experiment!r}")
        if "conflict" in answer:
            raise errors.ConflictError(
                f"run {event.run!r} of experiment {experiment!r} was requested already"
            )
        return int(answer["seq"])

    # --- logs ------------------------------------------------------------------------------------

    def read(self, key: str, after: int, wait_s: float) -> Iterator[str]:
        """JSON objects of a log or live stream after a cursor; `seq` and `time` are put in front of the stored rest."""
        for _, entries in self._block({key: after}, wait_s):
            yield from map(_numbered, entries)

    def watch(self, request: api.WatchRequest) -> tuple[dict[str, list[str]], int]:
        """Events per experiment as JSON objects, and the cluster's version."""
        names = {keys.log(name).encode(): name for name in request.cursors}
        cursors = {keys.log(name): after for name, after in request.cursors.items()}
        cluster = request.cluster
        events: dict[str, list[str]] = {}
        for key, entries in self._block({**cursors, keys.CLUSTER: cluster}, request.wait_s):
            if key in names:
                events[names[key]] = [_numbered(entry) for entry in entries]
            else:
                cluster = _seq(entries[-1][0])
        return events, cluster

    def _block(self, cursors: Mapping[str, int], wait_s: float) -> list[tuple[bytes, _Entries]]:
        streams: Any = {key: f"{after}-0" for key, after in cursors.items()}
        deadline = time.monotonic() + wait_s
        while True:
            left_s = min(deadline - time.monotonic(), _SLICE_S)
            # BLOCK 0 would mean for ever.
            block = round(left_s * 1000) if left_s > 0 and not self._draining.is_wanted else 0
            with _translated():
                source = self._blocking if block > 0 else self._redis
                answer: Any = source.xread(streams, count=PAGE, block=block if block > 0 else None)
            pairs = answer.items() if isinstance(answer, dict) else answer
            if pairs or block <= 0:
                return [(key, entries) for key, entries in pairs or ()]

    # --- controller ------------------------------------------------------------------------------

    def lead(self, request: api.LeaderRequest) -> api.LeaderAnswer:
        """Take or keep the leadership."""
        call = {
            "call": "lead",
            "leader": keys.LEADER,
            "holder": request.holder,
            "ttl_ms": round(request.ttl_s * 1000),
        }
        return api.LeaderAnswer.model_validate(self._run(call))

    def decide(
        self, experiment: str, request: api.DecideRequest
    ) -> tuple[list[dict[str, str]], Iterator[str]]:
        """Apply the controller's steps; returns their outcomes and the log after the cursor."""
        outcomes: list[dict[str, str]] = []
        if request.steps:
            answer = self._run(
                {
                    "call": "decide",
                    "experiment": keys.experiment(experiment),
                    "after": request.after,
                    "leader": keys.LEADER,
                    "term": request.term,
                    "steps": [steps.decision(experiment, step) for step in request.steps],
                }
            )
            if "missing" in answer:
                raise errors.NotFoundError(f"no experiment {experiment!r} in the store")
            if "stale" in answer:
                raise errors.ConflictError(
                    f"leadership term {request.term} has ended, term {answer['stale']} leads"
                )
            outcomes = answer["outcomes"]
        return outcomes, self.read(keys.log(experiment), request.after, 0)

    def queue(self) -> tuple[api.QueueEntry, ...]:
        """Open runs, oldest first."""
        with _translated():
            entries = [_text(entry).split("/", 1) for entry in self._redis.lrange(keys.QUEUE, 0, -1)]
        return tuple(api.QueueEntry(experiment=experiment, run=run) for experiment, run in entries)

    # --- workers ---------------------------------------------------------------------------------

    def register(self, record: WorkerRecord) -> WorkerRecord:
        """Register a worker's new incarnation."""
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
                "cluster": keys.CLUSTER,
            }
        )
        return record

    def remove_worker(self, worker: str, incarnation: str | None) -> None:
        """Forget a worker; of another incarnation than the one given, if one is, nothing happens."""
        call = {
            "call": "remove",
            "workers": keys.WORKERS,
            "name": worker,
            "worker": keys.worker(worker),
            "inbox": keys.inbox(worker),
            "recent": keys.recent(worker),
            "cluster": keys.CLUSTER,
        }
        answer = self._run(call | ({"incarnation": incarnation} if incarnation else {}))
        if "missing" in answer:
            raise errors.NotFoundError(f"no worker {worker!r} is registered: see `cerebro status`")
        if "current" in answer:
            raise errors.ConflictError(f"worker {worker!r} has registered anew meanwhile")

    def workers(self) -> tuple[WorkerStatus, ...]:
        """All registered workers, by name."""
        with _translated():
            seconds, micros = self._redis.time()
            now = seconds + micros / 1e6
            names = sorted(_text(name) for name in self._redis.smembers(keys.WORKERS))
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hgetall(keys.worker(name))
            found = pipe.execute()
        return tuple(
            WorkerStatus(
                record=WorkerRecord.model_validate_json(fields[b"record"]),
                silent_s=max(0.0, now - int(fields[b"reported"]) / 1000),
                checkpoint_free_bytes=int(fields[b"free"]) if fields[b"free"] else None,
                running=fields[b"running"].decode() or None,
                leaving=fields.get(b"leaving", b"").decode(),
            )
            for fields in found
            if fields  # removed between the two reads
        )

    def report(self, worker: str, request: api.ReportRequest) -> dict[str, Any]:
        """Apply a worker's steps, keep its live points and its heartbeat."""
        live = [
            {
                "log": keys.live(experiment),
                "key": keys.task(experiment, point.task),
                "attempt": point.attempt,
                "event": point.model_copy(update={"worker": worker}).model_dump_json(
                    exclude=steps.UNNUMBERED
                ),
            }
            for experiment, points in request.live.items()
            for point in points
        ]
        # Only the worker itself writes its record, so reading and writing it in two steps is safe.
        renewed = {} if request.holdings is None else self._renewed(worker, request.holdings)
        return self._run(
            renewed
            | {
                "call": "report",
                "worker": keys.worker(worker),
                "incarnation": request.incarnation,
                "lease_ms": round(request.lease_s * 1000),
                "free": "" if request.checkpoint_free_bytes is None else str(request.checkpoint_free_bytes),
                "running": request.running or "",
                "leaving": request.leaving,
                "cluster": keys.CLUSTER,
                "steps": [steps.report(worker, step) for step in request.steps],
                "live": live,
                "live_id": hashlib.sha256(json.dumps(live).encode()).hexdigest() if live else "",
                "recent": keys.recent(worker),
            }
        )

    def _renewed(self, worker: str, holdings: tuple[Holding, ...]) -> dict[str, str]:
        """The worker's record with other holdings; nothing for a worker nobody knows, whose report is not current."""
        with _translated():
            content: Any = self._redis.hget(keys.worker(worker), "record")
        if content is None:
            return {}
        record = WorkerRecord.model_validate_json(content)
        return {"record": record.model_copy(update={"holdings": holdings}).model_dump_json()}

    def inbox(self, worker: str, incarnation: str, after: int, wait_s: float) -> Iterator[str]:
        """Inbox entries as JSON objects; none for an incarnation that was replaced."""
        for _, entries in self._block({keys.inbox(worker): after}, wait_s):
            with _translated():
                if self._redis.hget(keys.worker(worker), "incarnation") != incarnation.encode():
                    return
            for identity, fields in entries:
                body = fields[b"b"].decode() or "null"
                yield f'{{"seq":{_seq(identity)},"body":{body},{fields[b"e"].decode()[1:]}'

    # --- the cluster's size ----------------------------------------------------------------------

    def size(self) -> SizeRequest | None:
        """The pending wish, if there is one."""
        with _translated():
            content: Any = self._redis.get(keys.SIZE)
        return None if content is None else SizeRequest.model_validate_json(content)

    def ask_size(self, wish: SizeRequest) -> None:
        """Replace the wish; one with a `problem` is an answer, and replaces only the wish that it answers."""
        self._size(wish.workers, record=wish.model_dump_json(), answers=bool(wish.problem))

    def drop_size(self, workers: int) -> None:
        """Take the wish for so many workers away; another one stays."""
        self._size(workers, answers=True)

    def _size(self, workers: int, **fields: Any) -> None:
        call = {"call": "size", "size": keys.SIZE, "cluster": keys.CLUSTER, "workers": workers}
        if "outdated" in self._run(call | fields):
            raise errors.ConflictError(f"nobody wishes {workers} workers any more")

    def troubles(self) -> Troubles:
        """Why workers do not start; none if nobody has said so."""
        with _translated():
            content: Any = self._redis.get(keys.TROUBLES)
        return Troubles() if content is None else Troubles.model_validate_json(content)

    def tell_troubles(self, troubles: Troubles) -> None:
        """Replace what is known of workers that do not start."""
        with _translated():
            self._redis.set(keys.TROUBLES, troubles.model_dump_json())

    # --- code ------------------------------------------------------------------------------------

    def put_code(self, record: CodeRecord) -> CodeRecord:
        """Store code under its hash."""
        if hashlib.sha256(record.encoded.encode()).hexdigest() != record.sha256:
            raise errors.BadRequestError(f"the encoded code's hash is not {record.sha256}")
        with _translated():
            self._redis.set(keys.code(record.sha256), record.model_dump_json(), nx=True)
        return record

    def code(self, sha256: str) -> CodeRecord:
        """Code by hash."""
        return self._document(keys.code(sha256), CodeRecord, f"user code {sha256[:12]}")

    def put_archive(self, sha256: str, content: bytes) -> None:
        """Store an archive's bytes under their hash."""
        if hashlib.sha256(content).hexdigest() != sha256:
            raise errors.BadRequestError(f"the archive's hash is not {sha256}")
        with _translated():
            self._redis.set(keys.archive(sha256), content, nx=True)

    def archive(self, sha256: str) -> bytes:
        """An archive's bytes."""
        with _translated():
            content: Any = self._redis.get(keys.archive(sha256))
        if content is None:
            raise errors.NotFoundError(f"no code archive {sha256[:12]} in the store")
        return bytes(content)

    # --- mechanism -------------------------------------------------------------------------------

    def _document(self, key: str, model: type[Model], what: str) -> Model:
        with _translated():
            content: Any = self._redis.get(key)
        if content is None:
            raise errors.NotFoundError(f"no {what} in the store")
        return model.model_validate_json(content)

    def _run(self, call: dict[str, Any]) -> dict[str, Any]:
        with _translated():
            answer: Any = self._steps(args=[json.dumps(call)])
        parsed: dict[str, Any] = json.loads(answer)
        if "outcomes" in parsed:
            # Lua cannot tell an empty list from an empty table: cjson writes both as {}.
            parsed["outcomes"] = parsed["outcomes"] or []
        return parsed


def _text(value: Any) -> str:
    """A string as Redis returns it: the client library's types allow for options we do not use."""
    return str(value.decode())


def _seq(identity: bytes) -> int:
    return int(identity.split(b"-", 1)[0])


def _numbered(entry: tuple[bytes, dict[bytes, bytes]]) -> str:
    """The stored JSON object with its number and time; spliced, because parsing what we wrote would cost more."""
    identity, fields = entry
    return f'{{"seq":{_seq(identity)},"time":{int(fields[b"t"]) / 1000},{fields[b"e"].decode()[1:]}'


@contextmanager
def _translated() -> Iterator[None]:
    """Redis' errors as ours: all that a restart can mend is `StoreUnavailableError`."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError) as cause:
        raise errors.StoreUnavailableError(f"Redis is away: {cause}") from cause
    except redis.ResponseError as cause:
        if str(cause).startswith(("MISCONF", "LOADING", "READONLY", "OOM")):
            raise errors.StoreUnavailableError(f"Redis refuses to write: {cause}") from cause
        raise
