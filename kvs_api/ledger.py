"""The store's part on logs: the cluster's, the *ledger*; experiments' as they are read, with the ledger in them.

An experiment's log tells of its own runs and tasks, the ledger of the workers. Each event is stored once. An event of
an experiment keeps how many events the ledger had when it was appended, so both have one order, without a clock. A
reader of the experiment's log is given both in this order, numbered as one dense log: an event's number counts the
experiment's events up to it, and the ledger's before it. The script gives an experiment's event this number as its id
(`append` in ``steps.lua``). So the gap before an id is as wide as the events of the ledger that belong there, and a
number that a reader was given means the same for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cerebro import errors
from cerebro.contract import api
from cerebro.contract.events import HoldingsChanged, WorkerJoined
from kvs_api import keys
from kvs_api.database import PAGE, Entries, seq_of, text, translated
from kvs_api.quarantine import QuarantineStore, checked, stale
from kvs_api.steps import UNNUMBERED

Numbered = tuple[int, dict[bytes, bytes]]


class LedgerStore(QuarantineStore):
    """Reads of logs, and what is written into the ledger."""

    def ledger(self, after: int, wait_s: float) -> Iterator[str]:
        """Events of the ledger after a cursor, as JSON objects."""
        for _, entries in self._block({keys.LEDGER: after}, wait_s):
            yield from (numbered(seq_of(identity), fields) for identity, fields in entries)

    def write_ledger(self, request: api.LedgerRequest) -> bool:
        """Append the controller's events to the ledger; false if something follows its cursor.

        Raises:
            ConflictError: another controller leads.
        """
        answer = self._run(
            {
                "call": "ledger",
                "after": request.after,
                "term": request.term,
                "leader": keys.LEADER,
                "experiments": keys.EXPERIMENTS,
                "experiment": keys.experiment(""),
                "events": [
                    {"event": event.model_dump_json(exclude=UNNUMBERED)}
                    | (
                        {}
                        if isinstance(event, HoldingsChanged)
                        else {"worker": event.worker, "incarnation": ""}
                    )
                    | ({"incarnation": event.incarnation} if isinstance(event, WorkerJoined) else {})
                    for event in request.events
                ],
            }
        )
        if "stale" in answer:
            raise stale(request.term, answer)
        return bool(answer["written"])

    def read_log(
        self, name: str, after: int, wait_s: float, *, is_checked: bool = False, is_older: bool = False
    ) -> list[str]:
        """An experiment's log after a cursor, as JSON objects; waits for news up to `wait_s` seconds.

        Args:
            is_checked: what is no JSON object is answered as an event of no known type. Else all is taken for one.
            is_older: the reader is of a version that knows no ledger: see `_for_older`.
        """
        found, _ = self.read_logs({name: after}, None, wait_s, is_checked=is_checked, is_older=is_older)
        return found.get(name, [])

    def read_logs(
        self,
        cursors: Mapping[str, int],
        notifications: int | None,
        wait_s: float,
        *,
        is_checked: bool = False,
        is_older: bool = False,
    ) -> tuple[dict[str, list[str]], int]:
        """The same of several experiments, each with its cursor, and the number of the newest notification.

        Args:
            notifications: that of the newest one that was read; `None`: they are of no interest.

        Raises:
            UnreadableError: `is_older`, and one of the logs began before the ledger.
        """
        positions = self._positions(cursors)
        if is_older:
            self._refuse_older(cursors)
        streams = {keys.log(name): after for name, after in cursors.items()}
        if positions:
            streams[keys.LEDGER] = min(positions.values())
        if notifications is not None:
            streams[keys.CLUSTER] = notifications
        answer: dict[str, Entries] = {text(key): entries for key, entries in self._block(streams, wait_s)}
        if notifications is not None and (news := answer.get(keys.CLUSTER)):
            notifications = seq_of(news[-1][0])
        ledger = answer.get(keys.LEDGER, [])
        found: dict[str, list[str]] = {}
        for name, after in cursors.items():
            own = answer.get(keys.log(name), [])
            beside = [entry for entry in ledger if seq_of(entry[0]) > positions[name]]
            merged = _merged(after, own, beside, is_cut=len(ledger) == PAGE)
            if events := [_as_told(entry, is_checked=is_checked, is_older=is_older) for entry in merged]:
                found[name] = events
        return found, notifications or 0

    def _positions(self, cursors: Mapping[str, int]) -> dict[str, int]:
        """For each experiment and number: how many events of the ledger a reader who is there has read."""
        with translated():
            pipe = self._redis.pipeline(transaction=False)
            for name, after in cursors.items():
                pipe.xrevrange(keys.log(name), f"{after}-0", count=1)
            answers = pipe.execute()
        found = {}
        for (name, after), newest in zip(cursors.items(), answers, strict=True):
            last = seq_of(newest[0][0]) if newest else 0
            found[name] = after - last + (self._count(name, newest[0]) if newest else 0)
        return found

    def _count(self, name: str, entry: tuple[bytes, dict[bytes, bytes]]) -> int:
        """How many events the ledger had when this one of an experiment was appended."""
        identity, fields = entry
        if b"c" in fields:
            return int(fields[b"c"])
        # It is of before the ledger; or a process of an older version appended it during an upgrade, right behind the
        # one before it.
        with translated():
            old: Any = self._redis.get(f"{keys.log(name)}:old")
            if old is None or seq_of(identity) <= int(old):
                return 0
            before: Any = self._redis.xrevrange(keys.log(name), f"({text(identity)}", count=1)
        return self._count(name, before[0]) if before else 0

    def _refuse_older(self, names: Iterable[str]) -> None:
        """Who knows no ledger takes its first event for a mistake where the log named workers before."""
        with translated():
            for name in names:
                begun, old, first = (
                    self._redis.exists(keys.LEDGER),
                    self._redis.get(f"{keys.log(name)}:old"),
                    self._redis.exists(keys.log(name)),
                )
                if begun and first and (old is None or int(old)):
                    raise errors.UnreadableError(
                        f"experiment {name!r} goes on with a newer version of Cerebro than this one, which cannot read "
                        "what happens in it: install the version that the cluster has"
                    )


def numbered(number: int, fields: dict[bytes, bytes]) -> str:
    """A stored JSON object with its number and time; spliced, because parsing what we wrote would cost more."""
    return f'{{"seq":{number},"time":{int(fields[b"t"]) / 1000},{fields[b"e"].decode(errors="replace")[1:]}'


def _merged(after: int, own: Entries, ledger: Entries, *, is_cut: bool) -> list[Numbered]:
    """What follows `after`, with numbers: each gap in the experiment's ids is filled from the ledger.

    Args:
        own, ledger: entries of the experiment and of the ledger after the cursor, as they were at one moment.
        is_cut: there is more in the ledger.
    """
    found: list[Numbered] = []
    left = iter(ledger)
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
    if len(own) < PAGE:
        found += [(number + 1 + position, fields) for position, (_, fields) in enumerate(left)]
    return found[:PAGE]


def _as_told(entry: Numbered, *, is_checked: bool, is_older: bool) -> str:
    number, fields = entry
    told = numbered(number, fields)
    if is_older and b'"HoldingsChanged"' in fields[b"e"]:
        told = _for_older(told)
    return checked(number, told) if is_checked else told


def _for_older(told: str) -> str:
    """The same for a reader that knows no `HoldingsChanged`: that a worker without any handlers joins, which shares the
    volume and has found there what was gained. It is given nothing, ever."""
    event = HoldingsChanged.model_validate_json(told)
    stand_in = WorkerJoined(
        seq=event.seq,
        time=event.time,
        worker=f"holdings-{event.seq}",
        incarnation="-",
        weight=1.0,
        kinds=(),
        holdings=event.gained,
        volume=event.volume,
    )
    return json.dumps(stand_in.model_dump(mode="json"))
