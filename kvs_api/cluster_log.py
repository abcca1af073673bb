"""The store's part on logs: the cluster's, the *cluster log*; experiments' as they are read, with the cluster log in
them.

An experiment's log tells of its own runs and tasks, the cluster log of the workers. Each event is stored once. An event
of an experiment keeps how many events the cluster log had when it was appended, so both have one order, without a
clock. A reader of the experiment's log is given both in this order, numbered as one dense log: an event's number counts
the experiment's events up to it, and the cluster log's before it. The script gives an experiment's event this number as
its id (`append` in ``steps.lua``). So the gap before an id is as wide as the events of the cluster log that belong
there. A reader is given an event of the cluster log only once its number is reserved (`reserve` there), so a number
means the same for ever.

What is no longer in the database is read from files (`kvs_api.log_files`). Which part that is, is asked after the
database was read: what left it meanwhile is in a file by then, so nothing is ever in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cerebro.contract import api
from cerebro.contract.events import ReplicasChanged, WorkerJoined
from kvs_api import keys
from kvs_api.database import PAGE, Entries, seq_of, text, translated
from kvs_api.log_files import LogFiles
from kvs_api.quarantine import checked
from kvs_api.stacks import StacksStore
from kvs_api.steps import UNNUMBERED

Numbered = tuple[int, dict[bytes, bytes]]


_OF_CLUSTER = api.OF_CLUSTER.encode()
"""Put to an entry of the cluster log as it is read."""


class ClusterLogStore(StacksStore):
    """Reads of logs, and what is written into the cluster log.

    Args:
        log_files: folder of files with the older part of logs; see `LogFiles`.
        arguments, options: see `Database`.
    """

    def __init__(self, *arguments: Any, log_files: Path | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._files = LogFiles(self._redis, log_files)

    def cluster_log(self, after: int, wait_s: float) -> Iterator[str]:
        """Events of the cluster log after a cursor, as JSON objects."""
        for _, found in self._block({keys.CLUSTER_LOG: after}, wait_s):
            entries, _ = self._page(keys.CLUSTER_LOG, after, found)
            yield from (numbered(seq_of(identity), fields) for identity, fields in entries)

    def _page(self, name: str, after: int, found: Entries) -> tuple[Entries, bool]:
        """The entries of a log after a number, a page at the most, and whether there are more.

        Args:
            found: what the database has of them.
        """
        if not found or seq_of(found[0][0]) == after + 1:
            return found, len(found) == PAGE
        # Of an experiment's log there may be events of the cluster between; else these are in files.
        moved: Entries = []
        # Not what was moved since the database was read: events of the cluster may belong before it.
        last = seq_of(found[-1][0])
        while len(moved) < PAGE and (more := self._files.after(keys.log_of(name), name, after)):
            known = [entry for entry in more[: PAGE - len(moved)] if seq_of(entry[0]) <= last]
            if not known:
                break
            moved += known
            after = seq_of(moved[-1][0])
        page = moved + [entry for entry in found if seq_of(entry[0]) > after]
        return page[:PAGE], len(page) >= PAGE or len(found) == PAGE

    def write_cluster_log(self, request: api.ClusterLogRequest) -> bool:
        """Append the controller's events to the cluster log; false if something follows its cursor.

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
        """An experiment's log after a cursor, as JSON objects; waits for news up to `wait_s` seconds.

        Args:
            is_checked: True to return damaged entries as events of no known type, and to mark events of the cluster log
                with `api.OF_CLUSTER`.
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
        """The same of several experiments, each with its cursor, and the number of the newest notification.

        Args:
            notifications: that of the newest one that was read; `None`: they are of no interest.
        """
        positions, reserved = self._positions(cursors)
        streams = {keys.log(name): after for name, after in cursors.items()}
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
        cluster_log, is_cut = self._page(keys.CLUSTER_LOG, streams.get(keys.CLUSTER_LOG, 0), cluster_log)
        if is_checked:
            cluster_log = [(identity, {**fields, _OF_CLUSTER: b"1"}) for identity, fields in cluster_log]
        found: dict[str, list[str]] = {}
        for name, after in cursors.items():
            own, has_more = self._page(name, after, answer.get(keys.log(name), []))
            unread = [entry for entry in cluster_log if seq_of(entry[0]) > positions[name]]
            merged = _merged(after, own, unread, has_more=has_more, is_cut=is_cut, reserved=reserved)
            if events := [_as_told(entry, is_checked=is_checked) for entry in merged]:
                found[name] = events
        return found, notifications or 0

    def _positions(self, cursors: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """For each experiment and number: how many events of the cluster log a reader who is there has read; and how
        many have a number in all of the experiments."""
        if not cursors:
            return {}, 0
        with translated():
            pipe = self._redis.pipeline(transaction=False)
            for name, after in cursors.items():
                pipe.xrevrange(keys.log(name), f"{after}-0", count=1)
            pipe.mget([f"{keys.log(name)}:cluster" for name in cursors])
            *answers, reserved = pipe.execute()
        found = {}
        for (name, after), newest in zip(cursors.items(), answers, strict=True):
            last = newest or (self._files.until(keys.log(name), name, after) if after else [])
            number = seq_of(last[0][0]) if last else 0
            found[name] = after - number + (int(last[0][1].get(b"c", 0)) if last else 0)
        return found, min(int(count or 0) for count in reserved)

    def _reserve(self, names: Iterable[str]) -> int:
        """Have the experiments reserve numbers for the cluster log's events; returns how many events have one in
        all."""
        logs = [{"experiment": keys.experiment(name), "log": keys.log(name)} for name in names]
        return int(self._run({"call": "reserve", "logs": logs})["cluster"])


def numbered(number: int, fields: dict[bytes, bytes]) -> str:
    """A stored JSON object with its number and time; spliced, because parsing what we wrote would cost more."""
    return f'{{"seq":{number},"time":{int(fields[b"t"]) / 1000},{fields[b"e"].decode(errors="replace")[1:]}'


def _by_key(entries: Iterable[tuple[bytes, Entries]]) -> dict[str, Entries]:
    return {text(key): found for key, found in entries}


def _merged(
    after: int, own: Entries, cluster_log: Entries, *, has_more: bool, is_cut: bool, reserved: int
) -> list[Numbered]:
    """What follows `after`, with numbers: each gap in the experiment's ids is filled from the cluster log.

    Args:
        own, cluster log: entries of the experiment and of the cluster log after the cursor, as they were at one moment.
        has_more: there is more of the experiment.
        is_cut: there is more in the cluster log.
        reserved: so many of the cluster log's had numbers in the experiment before that moment. Those after them may
            still get other numbers, and are not told yet.
    """
    found: list[Numbered] = []
    left = iter(cluster_log)
    number = after
    for identity, fields in own:
        while number + 1 < seq_of(identity):
            between = next(left, None)
            if between is None:
                break
            number += 1
            found.append((number, between[1]))
        if is_cut and number + 1 < seq_of(identity):
            return found[:PAGE]
        # If there is still a gap, something is lost: its reader is to find that out.
        number = seq_of(identity)
        found.append((number, fields))
    if not has_more:
        rest = (fields for identity, fields in left if seq_of(identity) <= reserved)
        found += enumerate(rest, number + 1)
    return found[:PAGE]


def _as_told(entry: Numbered, *, is_checked: bool) -> str:
    number, fields = entry
    told = numbered(number, fields)
    told = checked(number, told) if is_checked else told
    return f'{{"{api.OF_CLUSTER}":true,{told[1:]}' if _OF_CLUSTER in fields else told
