"""The store over Redis: translates typed requests into calls of ``steps.lua`` and plain reads.

Owns the mapping between contract and keys. Knows nothing of HTTP. Safe for use by many threads; a blocking read holds
one pooled connection. Redis runs with the append-only file on and ``appendfsync always``: what was answered is on disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from cerebro import errors
from cerebro.contract import api
from cerebro.contract.events import ClientEvent, RunRequested
from cerebro.contract.records import (
    CodeRecord,
    ExperimentRecord,
    ExperimentSummary,
)
from kvs_api import keys, steps
from kvs_api.crew import CrewStore
from kvs_api.database import seq_of, text, translated


class Store(CrewStore):
    """All reads and changes of shared state."""

    # --- experiments -----------------------------------------------------------------------------

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord:
        """Create, or return the same experiment; `ConflictError` when the name holds another one."""
        with translated():
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
        with translated():
            names = [text(name) for name in self._redis.zrange(keys.EXPERIMENTS, 0, -1)]
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.get(keys.experiment(name))
                pipe.xrevrange(keys.log(name), count=1)
            pipe.lrange(keys.QUEUE, 0, -1)
            answers = pipe.execute()
        runs = [text(entry) for entry in answers.pop()]
        summaries = []
        for position, name in enumerate(names):
            record = ExperimentRecord.model_validate_json(answers[2 * position])
            newest = answers[2 * position + 1]
            summaries.append(
                ExperimentSummary(
                    experiment=record,
                    last_seq=seq_of(newest[0][0]) if newest else 0,
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
                cluster = seq_of(entries[-1][0])
        return events, cluster

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
        with translated():
            entries = [text(entry).split("/", 1) for entry in self._redis.lrange(keys.QUEUE, 0, -1)]
        return tuple(api.QueueEntry(experiment=experiment, run=run) for experiment, run in entries)

    # --- code ------------------------------------------------------------------------------------

    def put_code(self, record: CodeRecord) -> CodeRecord:
        """Store code under its hash."""
        if hashlib.sha256(record.encoded.encode()).hexdigest() != record.sha256:
            raise errors.BadRequestError(f"the encoded code's hash is not {record.sha256}")
        with translated():
            self._redis.set(keys.code(record.sha256), record.model_dump_json(), nx=True)
        return record

    def code(self, sha256: str) -> CodeRecord:
        """Code by hash."""
        return self._document(keys.code(sha256), CodeRecord, f"user code {sha256[:12]}")

    def put_archive(self, sha256: str, content: bytes) -> None:
        """Store an archive's bytes under their hash."""
        if hashlib.sha256(content).hexdigest() != sha256:
            raise errors.BadRequestError(f"the archive's hash is not {sha256}")
        with translated():
            self._redis.set(keys.archive(sha256), content, nx=True)

    def archive(self, sha256: str) -> bytes:
        """An archive's bytes."""
        with translated():
            content: Any = self._redis.get(keys.archive(sha256))
        if content is None:
            raise errors.NotFoundError(f"no code archive {sha256[:12]} in the store")
        return bytes(content)


def _numbered(entry: tuple[bytes, dict[bytes, bytes]]) -> str:
    """The stored JSON object with its number and time; spliced, because parsing what we wrote would cost more."""
    identity, fields = entry
    return f'{{"seq":{seq_of(identity)},"time":{int(fields[b"t"]) / 1000},{fields[b"e"].decode()[1:]}'
