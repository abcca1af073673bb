"""Logs in the store: the *cluster log*, and experiments' logs merged with it for reading.

An experiment's log holds its own runs and tasks, the cluster log holds workers and replicas. Each event is stored
once. An experiment's event records the number of cluster events at its time, which gives both logs one order without
a clock. A reader of an experiment's log receives both in this order, under dense numbers: an event's number
counts the experiment's events up to it and the cluster events before it. The script uses this number as the
event's id (`append` in ``steps.lua``), so each gap between ids is exactly as wide as the cluster events
between them. Readers receive a cluster event only after its number is reserved (`reserve` there), so numbers
never change their meaning.

`ClusterLogStore` is a base class of `Store`. Events no longer in the database are read from files
(`kvs_api.logs.log_files`). The list of files is read after the database, so an event moved in between is found in
its file. Only the cluster log is written here; experiments' logs are written by `Store` and the script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cerebro.contract.events import ReplicasChanged, WorkerJoined
from cerebro.contract.rest import api
from kvs_api.logs.log_files import LogFiles
from kvs_api.store import keys
from kvs_api.store.database import PAGE, Entries, seq_of, text, translated
from kvs_api.store.experiment_quarantine import checked
from kvs_api.store.stack_requests import StacksStore
from kvs_api.store.steps import UNNUMBERED

Numbered = tuple[int, dict[bytes, bytes]]


_OF_CLUSTER = api.OF_CLUSTER.encode()
"""Field that marks an entry as read from the cluster log."""


class ClusterLogStore(StacksStore):
    """Reads of logs, and writes to the cluster log.

    Args:
        log_files: folder of the older part of logs; see `LogFiles`.
        arguments, options: see `Database`.
    """

    def __init__(self, *arguments: Any, log_files: Path | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._files = LogFiles(self._redis, log_files)

    def cluster_log(self, cursor: int, wait_s: float) -> Iterator[str]:
        """Yield events of the cluster log after a cursor, as JSON objects."""
        for _, found in self._block({keys.CLUSTER_LOG: cursor}, wait_s):
            entries, _ = self._page(keys.CLUSTER_LOG_NAME, cursor, found)
            yield from (numbered(seq_of(identity), fields) for identity, fields in entries)

    def _page(self, name: str, cursor: int, found: Entries) -> tuple[Entries, bool]:
        """Return one page of a log's entries after a number, and whether more follow.

        Args:
            found: the entries in the database.
        """
        if not found or seq_of(found[0][0]) == cursor + 1:
            return found, len(found) == PAGE
        # In an experiment's log, cluster events may fill this gap; otherwise its entries are in files.
        moved: Entries = []
        # Stop before entries moved since the database was read: cluster events may precede them.
        last = seq_of(found[-1][0])
        while len(moved) < PAGE and (more := self._files.entries_after(keys.log_of(name), name, cursor)):
            known = [entry for entry in more[: PAGE - len(moved)] if seq_of(entry[0]) <= last]
            if not known:
                break
            moved += known
            cursor = seq_of(moved[-1][0])
        page = moved + [entry for entry in found if seq_of(entry[0]) > cursor]
        return page[:PAGE], len(page) >= PAGE or len(found) == PAGE

    def write_cluster_log(self, request: api.ClusterLogRequest) -> bool:
        """Append the controller's events to the cluster log. Returns False if an event follows its cursor.

        Raises:
            ConflictError: another controller leads.
        """
        answer = self._run(
            {
                "call": "cluster_log",
                "after": request.after,
                "term": request.term,
                "events": [
                    {"event": event.model_dump_json(exclude=UNNUMBERED)}
                    | (
                        {}
                        if isinstance(event, ReplicasChanged)
                        else {"worker": event.worker, "incarnation": ""}
                    )
                    | ({"incarnation": event.incarnation} if isinstance(event, WorkerJoined) else {})
                    for event in request.events
                ],
            }
        )
        return bool(answer["written"])

    def read_log(self, name: str, after: int, wait_s: float, *, is_checked: bool = False) -> list[str]:
        """Return an experiment's log after a cursor, as JSON objects.

        Waits up to `wait_s` seconds for news.

        Args:
            is_checked: True to return damaged entries as events of unknown type, and to mark events of the
                cluster log with `api.OF_CLUSTER`.
        """
        found, _ = self.read_logs({name: after}, None, wait_s, is_checked=is_checked)
        return found.get(name, [])

    def read_logs(
        self,
        cursors: Mapping[str, int],
        notifications: int | None,
        wait_s: float,
        *,
        is_checked: bool = False,
    ) -> tuple[dict[str, list[str]], int]:
        """Read several experiments' logs, each after its cursor, and the newest notification number.

        Args:
            notifications: number of the last notification read; `None` ignores notifications.
        """
        positions, reserved = self._positions(cursors)
        streams = {keys.log(name): cursor for name, cursor in cursors.items()}
        if positions:
            streams[keys.CLUSTER_LOG] = min(positions.values())
        if notifications is not None:
            streams[keys.CLUSTER] = notifications
        answer = _by_key(self._block(streams, wait_s))
        if (cluster_log := answer.get(keys.CLUSTER_LOG, [])) and seq_of(cluster_log[-1][0]) > reserved:
            reserved = self._reserve(cursors)
            answer = _by_key(self._read(streams))
            cluster_log = answer.get(keys.CLUSTER_LOG, [])
        if notifications is not None and (news := answer.get(keys.CLUSTER)):
            notifications = seq_of(news[-1][0])
        cluster_log, is_cut = self._page(keys.CLUSTER_LOG_NAME, streams.get(keys.CLUSTER_LOG, 0), cluster_log)
        if is_checked:
            cluster_log = [(identity, {**fields, _OF_CLUSTER: b"1"}) for identity, fields in cluster_log]
        found: dict[str, list[str]] = {}
        for name, cursor in cursors.items():
            experiment_log, has_more = self._page(name, cursor, answer.get(keys.log(name), []))
            unread = [entry for entry in cluster_log if seq_of(entry[0]) > positions[name]]
            merged = _merged(
                cursor, experiment_log, unread, has_more=has_more, is_cut=is_cut, reserved=reserved
            )
            if events := [_as_json(entry, is_checked=is_checked) for entry in merged]:
                found[name] = events
        return found, notifications or 0

    def _positions(self, cursors: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """Return two counts of cluster events.

        For each experiment, the events before its cursor; and the events with a reserved number in every
        experiment.
        """
        if not cursors:
            return {}, 0
        with translated():
            pipe = self._redis.pipeline(transaction=False)
            for name, cursor in cursors.items():
                pipe.xrevrange(keys.log(name), f"{cursor}-0", count=1)
            pipe.mget([f"{keys.log(name)}:cluster" for name in cursors])
            *answers, reserved = pipe.execute()
        found = {}
        for (name, cursor), newest in zip(cursors.items(), answers, strict=True):
            last = newest or (self._files.last_entry(keys.log(name), name, cursor) if cursor else [])
            number = seq_of(last[0][0]) if last else 0
            found[name] = cursor - number + (int(last[0][1].get(b"c", 0)) if last else 0)
        return found, min(int(count or 0) for count in reserved)

    def _reserve(self, names: Iterable[str]) -> int:
        """Reserve numbers for cluster events; return the number of events reserved in every experiment."""
        logs = [{"experiment": keys.experiment(name), "log": keys.log(name)} for name in names]
        return int(self._run({"call": "reserve", "logs": logs})["cluster"])


def numbered(number: int, fields: dict[bytes, bytes]) -> str:
    """Return a stored JSON object with its number and time. Spliced: parsing our own text would cost more."""
    return f'{{"seq":{number},"time":{int(fields[b"t"]) / 1000},{fields[b"e"].decode(errors="replace")[1:]}'


def _by_key(entries: Iterable[tuple[bytes, Entries]]) -> dict[str, Entries]:
    return {text(key): found for key, found in entries}


def _merged(
    cursor: int, experiment_log: Entries, cluster_log: Entries, *, has_more: bool, is_cut: bool, reserved: int
) -> list[Numbered]:
    """Merge the entries after `cursor`: the cluster log fills gaps in the experiment's ids.

    Args:
        experiment_log, cluster_log: entries after the cursor, both read at the same moment.
        has_more: True if the experiment's log continues.
        is_cut: True if the cluster log continues.
        reserved: number of cluster events with reserved numbers at that moment. Later ones may still get
            other numbers and are not returned.
    """
    found: list[Numbered] = []
    cluster_entries = iter(cluster_log)
    number = cursor
    for identity, fields in experiment_log:
        while number + 1 < seq_of(identity):
            between = next(cluster_entries, None)
            if between is None:
                break
            number += 1
            found.append((number, between[1]))
        if is_cut and number + 1 < seq_of(identity):
            return found[:PAGE]
        # A remaining gap means lost events. The reader detects it.
        number = seq_of(identity)
        found.append((number, fields))
    if not has_more:
        rest = (fields for identity, fields in cluster_entries if seq_of(identity) <= reserved)
        found += enumerate(rest, number + 1)
    return found[:PAGE]


def _as_json(entry: Numbered, *, is_checked: bool) -> str:
    number, fields = entry
    content = numbered(number, fields)
    content = checked(number, content) if is_checked else content
    return f'{{"{api.OF_CLUSTER}":true,{content[1:]}' if _OF_CLUSTER in fields else content
