"""The history of sub-epochs in the store: one table of bounded length. Each event of a log counts once.

The leading controller adds rows; it and clients read them. Rows are merged here, and nothing is estimated from
them (`cerebro.contract.stored.history`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cerebro import errors
from cerebro.contract.stored.history import (
    MAX_ROWS,
    History,
    HistoryAnswer,
    HistoryRequest,
    Key,
    SubEpochHistory,
)
from kvs_api.store import keys
from kvs_api.store.database import translated
from kvs_api.store.registry import RegistryStore

_TRIES = 20
"""Only the leading controller writes, but leadership may change during a call."""

_KEY: TypeAdapter[str] = TypeAdapter(Key)


class HistoryStore(RegistryStore):
    """Reads and changes of the history."""

    def history(self) -> History:
        """Return all readable rows."""
        with translated():
            found: Any = self._redis.hgetall(keys.SUB_EPOCHS)
        sub_epochs, unreadable = {}, 0
        for key, content in found.items():
            try:
                sub_epochs[_KEY.validate_python(key.decode())] = SubEpochHistory.model_validate_json(content)
            except ValueError:  # pydantic's, too
                unreadable += 1
        return History(sub_epochs=sub_epochs, unreadable=unreadable)

    def count_history(self, request: HistoryRequest) -> HistoryAnswer:
        """Add rows to the table, unless their events have been counted before.

        Raises:
            ConflictError: another controller leads.
            NotFoundError: the experiment does not exist.
        """
        for _ in range(_TRIES):
            seq, rows = self._rows(request.sub_epochs)
            merged = {key: _merged(rows.get(key), row) for key, row in request.sub_epochs.items()}
            answer = self._run(
                {
                    "call": "count_history",
                    "experiment": keys.experiment(request.experiment),
                    "log": keys.log(request.experiment),
                    "term": request.term,
                    "after": request.after,
                    "upto": request.upto,
                    "seq": seq,
                    "table": keys.SUB_EPOCHS,
                    "most": MAX_ROWS,
                    "rows": [{"key": key, "row": row} for key, row in merged.items()],
                }
            )
            if "missing" in answer:
                raise errors.NotFoundError(f"no experiment {request.experiment!r} in the store")
            if "changed" not in answer:
                return HistoryAnswer(upto=answer["upto"], is_counted=answer["counted"])
        raise errors.StoreUnavailableError("too much of the history changes at once; try again")

    def forget_history(self) -> int:
        """Remove all rows and return their number. Counted events do not count again."""
        return int(self._run({"call": "forget_history", "table": keys.SUB_EPOCHS})["forgotten"])

    def _rows(self, names: Mapping[str, object]) -> tuple[int, dict[str, bytes]]:
        """Return the number of the table's newest change, and the stored text of existing rows."""
        with translated():
            pipe = self._redis.pipeline()
            pipe.get(f"{keys.SUB_EPOCHS}:seq")
            if names:
                pipe.hmget(keys.SUB_EPOCHS, [*names])
            seq, *found = pipe.execute()
        rows = zip(names, found[0] if found else (), strict=True)
        return int(seq or 0), {key: content for key, content in rows if content is not None}


def _merged(stored: bytes | None, newer: SubEpochHistory) -> str:
    """Return the new content of a row. A damaged row is replaced."""
    if stored is None:
        return newer.model_dump_json()
    try:
        return SubEpochHistory.model_validate_json(stored).with_more(newer).model_dump_json()
    except ValidationError:
        return newer.model_dump_json()
