"""The answers about the older part of logs."""

from __future__ import annotations

from flask import Response, request

from cerebro import errors
from cerebro.contract.segments import SegmentRequest
from kvs_api import keys
from kvs_api.answering import answer, body, checked_name, whole_number
from kvs_api.history_views import HistoryViews


class SegmentViews(HistoryViews):
    """One method for each of its entries of `STORE`."""

    def cut(self, name: str) -> Response:
        """Move the older part of an experiment's log into a file."""
        asked = body(SegmentRequest)
        self._store.require(checked_name(name))
        return answer(self._store.cut(name, asked))

    def cut_cluster_log(self) -> Response:
        """The same of the cluster's log."""
        return answer(self._store.cut(keys.CLUSTER_LOG, body(SegmentRequest)))

    def segments(self, name: str) -> Response:
        """What of an experiment's log is in files."""
        self._store.require(checked_name(name))
        return answer(self._store.segments(name))

    def cluster_log_segments(self) -> Response:
        """The same of the cluster's log."""
        return answer(self._store.segments(keys.CLUSTER_LOG))

    def keep_snapshot(self, name: str) -> Response:
        """Keep the fold of an experiment's log."""
        return self._keep(checked_name(name))

    def keep_cluster_log_snapshot(self) -> Response:
        """The same of the cluster's log."""
        return self._keep(keys.CLUSTER_LOG)

    def snapshot(self, name: str) -> Response:
        """The newest fold of an experiment's log of a format."""
        return self._found(checked_name(name))

    def cluster_log_snapshot(self) -> Response:
        """The same of the cluster's log."""
        return self._found(keys.CLUSTER_LOG)

    def _keep(self, name: str) -> Response:
        seq = whole_number("seq", "the number of the newest event in it")
        term = whole_number("term", "the controller's leadership")
        try:
            created = float(request.args.get("created", "0"))
        except ValueError as cause:
            raise errors.BadRequestError(f"created must be a number: {cause}") from cause
        found = self._store.keep_snapshot(name, seq, _format(), term, request.get_data(), created=created)
        return answer(found)

    def _found(self, name: str) -> Response:
        found = self._store.snapshot(name, _format())
        if found is None:
            raise errors.NotFoundError("there is no snapshot of this format: fold the log")
        return Response(found[1], mimetype="application/octet-stream")


def _format() -> str:
    found = request.args.get("format", "")
    if not found or len(found) > 64:
        raise errors.BadRequestError(f"format is {found[:80]!r}, expected 1 to 64 characters")
    return found
