"""The store over Redis: translates typed requests into calls of the Lua script and plain reads.

`Store` is the last class of a chain: each base class adds the methods of one topic, from `Database` over accounts,
workers, health and logs to the registry and the history. This module adds experiments, runs, leadership, trials and
code. The views (`kvs_api.api.views`) call it; it knows nothing about HTTP. Rules that several keys must obey are
in the script. Thread-safe; a waiting read holds no connection. Redis runs with the append-only file and
``appendfsync always``, so every answered change is on disk.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from cerebro import errors
from cerebro.contract.events import (
    ClientEvent,
    DeletionRequested,
    ExperimentArchived,
    LocatorsChanged,
    RunRequested,
    TagsChanged,
)
from cerebro.contract.records import (
    CodeRecord,
    ExperimentRecord,
    ExperimentSummary,
    Reclaim,
    Unreadable,
)
from cerebro.contract.rest import api
from cerebro.contract.texts import did_you_mean
from cerebro.contract.trials import TrialRecord
from kvs_api.logs.cluster_log import numbered
from kvs_api.store import keys, steps
from kvs_api.store.database import PAGE, seq_of, text, translated
from kvs_api.store.experiment_quarantine import record_of
from kvs_api.store.history import HistoryStore
from kvs_api.store.refusals import refusal

_NAMES = 1000
"""Newest experiments whose names are compared with an unknown one."""
_TRIALS_S = 90 * 24 * 3600
"""Seconds to keep trial results: machines, drivers and other load change."""


class Store(HistoryStore):
    """All reads and changes of shared state."""

    # --- experiments -----------------------------------------------------------------------------

    def create_experiment(self, record: ExperimentRecord) -> ExperimentRecord:
        """Create an experiment, or return the existing one with the same content.

        Raises:
            ConflictError: the name has other locators or code, or is being deleted.
        """
        with translated():
            seconds, micros = self._redis.time()
            record = record.model_copy(update={"created": seconds + micros / 1e6})
            key = keys.experiment(record.name)
            if self._redis.set(key, record.model_dump_json(), nx=True):
                self._redis.zadd(keys.EXPERIMENTS, {record.name: record.created})
                return record
            known = self.experiment(record.name)
            if self._redis.sismember(keys.DELETING, record.name):
                raise errors.ConflictError(
                    f"experiment {record.name!r} is being deleted with its data: wait until its name is free again, "
                    "see `cerebro status`"
                )
            # A crash between the two writes above leaves the experiment out of the list; repeat the second.
            self._redis.zadd(keys.EXPERIMENTS, {known.name: known.created})
        if (known.locators, known.archive) != (record.locators, record.archive):
            what = "other dataset locators" if known.locators != record.locators else "another code archive"
            raise errors.ConflictError(
                f"experiment {record.name!r} exists already with {what}: choose another name, continue the existing "
                f"experiment with Experiment.attach({record.name!r}), or delete it with all its data with "
                f"`cerebro delete {record.name}`"
            )
        return known

    def experiment(self, name: str) -> ExperimentRecord:
        """Return an experiment's record.

        Raises:
            NotFoundError: it does not exist; the message has a similar name, or the newest ones.
        """
        try:
            return self._document(keys.experiment(name), ExperimentRecord, f"experiment {name!r}")
        except errors.NotFoundError as cause:
            with translated():
                newest = [text(each) for each in self._redis.zrange(keys.EXPERIMENTS, 0, _NAMES, desc=True)]
            listed = f"; the newest are: {', '.join(newest[:5]) or 'none yet'}"
            hint = did_you_mean(name, newest) or listed
            raise errors.NotFoundError(f"no experiment {name!r}{hint}") from cause

    def require(self, name: str) -> None:
        """Raise an error if an experiment does not exist.

        Raises:
            NotFoundError: it does not.
        """
        with translated():
            is_there = self._redis.exists(keys.experiment(name))
        if not is_there:
            raise errors.NotFoundError(f"no experiment {name!r} in the store")

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """Return all experiments, newest event first."""
        with translated():
            found: Any = self._redis.zrange(keys.EXPERIMENTS, 0, -1, withscores=True)
            names = [text(name) for name, _ in found]
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.get(keys.experiment(name))
                pipe.xrevrange(keys.log(name), count=1)
                pipe.hmget(keys.marks(name), "archived", "deletion", "unreadable")
            pipe.lrange(keys.QUEUE, 0, -1)
            answers = pipe.execute()
        runs = [text(entry) for entry in answers.pop()]
        summaries = []
        for position, name in enumerate(names):
            content, newest, (archived, deletion, mark) = answers[3 * position : 3 * position + 3]
            if content is None:  # deleted between the two reads
                continue
            record, unreadable = record_of(name, content, found[position][1])
            summaries.append(
                ExperimentSummary(
                    experiment=record,
                    last_seq=seq_of(newest[0][0]) if newest else 0,
                    last_event=int(newest[0][1][b"t"]) / 1000 if newest else record.created,
                    open_runs=tuple(run.split("/", 1)[1] for run in runs if run.startswith(f"{name}/")),
                    is_archived=bool(archived),
                    is_deleting=bool(deletion),
                    unreadable=Unreadable.model_validate_json(mark) if mark else unreadable,
                )
            )
        return tuple(sorted(summaries, key=lambda summary: -summary.last_event))

    def append(self, experiment: str, event: ClientEvent, *, once: str = "", is_unread: bool = False) -> int:
        """Append a client's event and return its number; see `KvsClient.append`.

        Calls with equal `once` count once.
        """
        content = event.model_dump_json(exclude=steps.UNNUMBERED)
        call: dict[str, Any] = {
            "call": "append",
            "experiment": keys.experiment(experiment),
            "log": keys.log(experiment),
            "name": experiment,
            "kind": event.type,
            "event": content,
            "calls": keys.calls(experiment),
            "queue": keys.QUEUE,
            "deleting": keys.DELETING,
            "cluster": keys.CLUSTER,
            **self._quota_arguments(event),
        }
        if once:
            call["once"] = once
        if isinstance(event, ExperimentArchived):
            call["is_archived"] = event.is_archived
        elif isinstance(event, TagsChanged):
            call |= {"run": event.run} if event.run else {}
        elif isinstance(event, DeletionRequested):
            call |= {"by": event.by, "unread": is_unread}
        elif isinstance(event, LocatorsChanged):
            record = self.experiment(experiment).model_copy(update={"locators": event.locators})
            call |= {"after": event.after, "record": record.model_dump_json()}
        else:
            call |= {"run": event.run, "entry": f"{experiment}/{event.run}"}
        if isinstance(event, RunRequested):
            call["hash"] = hashlib.sha256(content.encode()).hexdigest()
        answer = self._run(call)
        if "seq" not in answer:
            raise refusal(experiment, event, answer)
        return int(answer["seq"])

    def delete_experiment(self, name: str, term: int) -> None:
        """Delete an experiment's record, log and live points after a user's request."""
        guard = {
            "experiment": keys.experiment(name),
            "name": name,
            "term": term,
            "deleting": keys.DELETING,
        }
        workers = {"worker": keys.worker("")}
        # Thousands of keys: delete in slices, so other calls need not wait. An interrupted deletion is
        # repeated.
        for found in self._tasks(name):
            self._erase(name, guard | workers | {"call": "erase_tasks", "tasks": found})
        self._erase(
            name,
            guard
            | {
                "call": "erase",
                "experiments": keys.EXPERIMENTS,
                "log": keys.log(name),
                "live": keys.live(name),
                "calls": keys.calls(name),
                "dataset": keys.DATASET,
                "reclaim": keys.RECLAIM,
                "audit": keys.AUDIT,
                "what": f"deleted experiment {name}",
                "cluster": keys.CLUSTER,
                "bytes": keys.BYTES,
            },
        )

    def _tasks(self, name: str) -> Iterator[list[str]]:
        """Yield keys of an experiment's tasks, in slices."""
        with translated():
            found = self._redis.scan_iter(keys.task(name, "*"), count=PAGE)
            while some := [text(key) for key in itertools.islice(found, PAGE)]:
                yield some

    def _erase(self, name: str, call: dict[str, Any]) -> None:
        answer = self._run(call)
        if "missing" in answer:
            raise errors.NotFoundError(f"no experiment {name!r} in the store")
        if "unasked" in answer:
            raise errors.ConflictError(
                f"nobody asked to delete experiment {name!r}: append DeletionRequested first"
            )

    def reclaim(self) -> Reclaim:
        """Return the data sets that no experiment uses, and the number of this set's newest change."""
        with translated():
            # Read the number first: a list newer than its number is read again, an older one would not be.
            seq: Any = self._redis.get(keys.RECLAIM + ":seq")
            names = [text(name) for name in self._redis.smembers(keys.RECLAIM)]
        return Reclaim(seq=int(seq or 0), datasets=tuple(sorted(names)))

    # --- logs ------------------------------------------------------------------------------------

    def live(self, name: str, cursor: int, wait_s: float) -> Iterator[str]:
        """Yield live points of an experiment after a cursor, as JSON objects."""
        for _, entries in self._block({keys.live(name): cursor}, wait_s):
            yield from (numbered(seq_of(identity), fields) for identity, fields in entries)

    def watch(self, request: api.WatchRequest) -> tuple[dict[str, list[str]], int]:
        """Return events per experiment as JSON objects, and the newest notification number."""
        return self.read_logs(request.cursors, request.cluster, request.wait_s)

    # --- controller ------------------------------------------------------------------------------

    def lead(self, request: api.LeaderRequest) -> api.LeaderAnswer:
        """Take or renew the controller's leadership lease."""
        call = {
            "call": "lead",
            "holder": request.holder,
            "process": request.process,
            "is_start": request.is_start,
            "ttl_ms": round(request.ttl_s * 1000),
            "open_runs": request.open_runs,
        }
        if request.attended is not None:
            call["attended"] = request.attended.model_dump_json()
        return api.LeaderAnswer.model_validate(self._run(call))

    def decide(self, experiment: str, request: api.DecideRequest) -> tuple[list[dict[str, str]], list[str]]:
        """Apply the controller's steps; return their outcomes and the log after the cursor (`read_log`)."""
        outcomes: list[dict[str, str]] = []
        if request.steps:
            answer = self._run(
                {
                    "call": "decide",
                    "experiment": keys.experiment(experiment),
                    "log": keys.log(experiment),
                    "after": request.after,
                    "term": request.term,
                    "steps": [steps.decision(experiment, step) for step in request.steps],
                    **self._hour_arguments(),
                }
            )
            if "missing" in answer:
                raise errors.NotFoundError(f"no experiment {experiment!r} in the store")
            outcomes = answer["outcomes"]
        return outcomes, self.read_log(experiment, request.after, 0)

    def queue(self) -> api.QueueAnswer:
        """Return open runs, oldest first, and experiments to delete."""
        with translated():
            entries = [text(entry).split("/", 1) for entry in self._redis.lrange(keys.QUEUE, 0, -1)]
            deleting = sorted(text(name) for name in self._redis.smembers(keys.DELETING))
            leader: Any = self._redis.hmget(keys.LEADER, "open_runs", "attended")
        return api.QueueAnswer(
            runs=tuple(api.QueueEntry(experiment=experiment, run=run) for experiment, run in entries),
            deleting=tuple(deleting),
            open_runs=int(leader[0] or 1),
            attended=api.Attended.model_validate_json(leader[1] or "{}"),
        )

    # --- trials ----------------------------------------------------------------------------------

    def keep_trial(self, record: TrialRecord) -> None:
        """Store a trial's result. Replaces an earlier one."""
        arguments = {"key": keys.trial(record.key), "record": record.model_dump_json(), "kept_s": _TRIALS_S}
        self._run({"call": "put", **arguments})

    def trials(self, names: Sequence[str]) -> tuple[TrialRecord, ...]:
        """Return the stored results of trials. Unreadable ones are skipped."""
        if not names:
            return ()
        with translated():
            found: Any = self._redis.mget([keys.trial(sha256) for sha256 in names])
        records = []
        for sha256, content in zip(names, found, strict=True):
            with suppress(ValidationError):
                if content is not None and (record := TrialRecord.model_validate_json(content)).key == sha256:
                    records.append(record)
        return tuple(records)

    def forget_trials(self, names: Sequence[str]) -> int:
        """Remove results of trials; return the number removed."""
        with translated():
            found: Any = self._redis.delete(*[keys.trial(sha256) for sha256 in names]) if names else 0
        return int(found)

    # --- code ------------------------------------------------------------------------------------

    def put_code(self, record: CodeRecord) -> CodeRecord:
        """Store code under its hash."""
        if hashlib.sha256(record.encoded.encode()).hexdigest() != record.sha256:
            raise errors.BadRequestError(
                f"the hash of the encoded code is not {record.sha256}: send the code again"
            )
        with translated():
            self._redis.set(keys.code(record.sha256), record.model_dump_json(), nx=True)
        return record

    def code(self, sha256: str) -> CodeRecord:
        """Return code by its hash."""
        return self._document(keys.code(sha256), CodeRecord, f"user code {sha256[:12]}")

    def put_archive(self, sha256: str, content: bytes) -> None:
        """Store an archive under its hash."""
        if hashlib.sha256(content).hexdigest() != sha256:
            raise errors.BadRequestError(f"the hash of the archive is not {sha256}: send the archive again")
        with translated():
            self._redis.set(keys.archive(sha256), content, nx=True)

    def archive(self, sha256: str) -> bytes:
        """Return an archive's bytes."""
        with translated():
            content: Any = self._redis.get(keys.archive(sha256))
        if content is None:
            raise errors.NotFoundError(f"no code archive {sha256[:12]} in the store")
        return bytes(content)
