"""The part of `cerebro.runtime.kvs.client.KvsClient` for old parts of logs (segments) and for snapshots.

The controller moves old entries into files and keeps snapshots; readers of a log start at a snapshot. kvs_api
writes the files.
"""

from __future__ import annotations

from urllib.parse import quote

from cerebro.contract.stored.segments import SegmentAnswer, SegmentRequest, SegmentsAnswer, Snapshot
from cerebro.errors import NotFoundError
from cerebro.runtime.kvs.transport import Transport


class SegmentCalls(Transport):
    """A part of `cerebro.runtime.kvs.client.KvsClient`. `experiment` is a name, or "" for the cluster log."""

    def cut(self, experiment: str, request: SegmentRequest) -> SegmentAnswer:
        """Move the oldest entries of a log from the database into a file: at most one segment.

        Raises:
            NotFoundError: the experiment does not exist.
            ConflictError: another controller leads; or nothing can be moved, with the reason.
        """
        return self.call("POST", f"{_log(experiment)}/segments", SegmentAnswer, request)

    def segments(self, experiment: str) -> SegmentsAnswer:
        """Return the segments of a log."""
        return self.call("GET", f"{_log(experiment)}/segments", SegmentsAnswer)

    def keep_snapshot(
        self, experiment: str, seq: int, of_format: str, term: int, content: bytes, *, created: float = 0.0
    ) -> Snapshot:
        """Keep the fold of a log up to event `seq`; raises as `cut`.

        Args:
            created: creation time of the experiment, as in `SegmentRequest`.
        """
        path = (
            f"{_log(experiment)}/snapshot?seq={seq}&format={quote(of_format)}&term={term}&created={created!r}"
        )
        return self.answered(Snapshot, "PUT", path, self.send("PUT", path, content, 0.0))

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        """Return a log's newest snapshot of this format; `None` if the log must be folded."""
        try:
            return self.send("GET", f"{_log(experiment)}/snapshot?format={quote(of_format)}", None, 0.0)
        except NotFoundError:
            return None


def _log(experiment: str) -> str:
    return f"/v1/experiments/{quote(experiment, safe='')}" if experiment else "/v1/cluster/log"
