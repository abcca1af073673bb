"""Views that move the older part of a log into files, and store and return snapshots (`kvs_api.logs.segment_store`).

The controller calls them and decides when to cut. Log readers don't need them: ordinary reads include moved events.
"""

from __future__ import annotations

from starlette.responses import Response

from cerebro import errors
from cerebro.contract.stored.segments import SegmentRequest
from kvs_api.api.call import Call, answer, bytes_answer, checked_name
from kvs_api.api.history_views import HistoryViews
from kvs_api.store import keys


class SegmentViews(HistoryViews):
    """One method for each segment entry of `STORE`."""

    def cut(self, call: Call, name: str) -> Response:
        """Move the oldest events of an experiment's log into one file."""
        request = call.body(SegmentRequest)
        self._store.require(checked_name(name))
        return answer(self._store.cut(name, request))

    def cut_cluster_log(self, call: Call) -> Response:
        """Move the oldest events of the cluster log into one file."""
        return answer(self._store.cut(keys.CLUSTER_LOG_NAME, call.body(SegmentRequest)))

    def segments(self, call: Call, name: str) -> Response:
        """List the files that hold the older part of an experiment's log."""
        self._store.require(checked_name(name))
        return answer(self._store.segments(name))

    def cluster_log_segments(self, call: Call) -> Response:
        """List the files that hold the older part of the cluster log."""
        return answer(self._store.segments(keys.CLUSTER_LOG_NAME))

    def keep_snapshot(self, call: Call, name: str) -> Response:
        """Store a snapshot of an experiment's log."""
        return self._keep(call, checked_name(name))

    def keep_cluster_log_snapshot(self, call: Call) -> Response:
        """Store a snapshot of the cluster log."""
        return self._keep(call, keys.CLUSTER_LOG_NAME)

    def snapshot(self, call: Call, name: str) -> Response:
        """Return the newest snapshot of an experiment's log in a format."""
        return self._found(call, checked_name(name))

    def cluster_log_snapshot(self, call: Call) -> Response:
        """Return the newest snapshot of the cluster log in a format."""
        return self._found(call, keys.CLUSTER_LOG_NAME)

    def _keep(self, call: Call, name: str) -> Response:
        seq = call.require_integer("seq", "the number of the newest event in it")
        term = call.require_integer("term", "the controller's leadership")
        try:
            created = float(call.args.get("created", "0"))
        except ValueError as cause:
            raise errors.BadRequestError(f"created must be a number: {cause}") from cause
        found = self._store.keep_snapshot(name, seq, _format(call), term, call.content, created=created)
        return answer(found)

    def _found(self, call: Call, name: str) -> Response:
        found = self._store.snapshot(name, _format(call))
        if found is None:
            raise errors.NotFoundError("there is no snapshot of this format: fold the log")
        return bytes_answer(found[1])


def _format(call: Call) -> str:
    found = call.args.get("format", "")
    if not found or len(found) > 64:
        raise errors.BadRequestError(f"format is {found[:80]!r}, expected 1 to 64 characters")
    return found
