"""Every error Cerebro raises on purpose.

Whether trying again can help is a type (`RetryableError` or `PermanentError`), never a phrase in the message. A message
names the object, what was expected and what to do next. Adapters translate foreign errors with ``raise ... from``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self


class CerebroError(Exception):
    """Root of all errors that Cerebro raises on purpose.

    Attributes:
        user_traceback: of user code, where it raised in another process than the one that raises this.
    """

    user_traceback: str = ""


class PermanentError(CerebroError):
    """Trying again without a change by the user gives the same error."""


class RetryableError(CerebroError):
    """Trying again, later or elsewhere, may succeed."""


# --- what a user gave us ------------------------------------------------------------------------


class LocatorError(PermanentError):
    """A dataset locator names something that is missing, unreadable or of an unknown kind."""


class MetadataError(PermanentError):
    """A metadata table cannot be used: no ``id``, duplicate ids, no rows, fewer rows than workers."""


class SpecError(PermanentError):
    """An ETLSpec or SubEpochSpec cannot be used, sent to a worker or restored there."""


class NotApplicableError(PermanentError):
    """A technique cannot train this model here; the message is the reason, for people. Another one may."""


class SearchSpaceError(PermanentError):
    """A search space is empty, has a value of a wrong type, or lacks ``batch_size``."""


class SearchError(PermanentError, ValueError):
    """A search cannot begin or go on: an argument is wrong, or the procedure is unknown or ordered what cannot be."""


class RowError(PermanentError):
    """A row function raised too often, or returned fields that differ from row to row.

    Attributes:
        rows_failed: of how many rows it is known that they failed, if that is the reason.
    """

    rows_failed = 0


class InstanceError(PermanentError):
    """A scheduling instance cannot be read or has no schedule: a time that is no time, a partition nobody holds."""


class ScheduleError(PermanentError):
    """A schedule breaks an invariant: a sub-epoch twice or never, a model in two places, GPUs overbooked."""


class DataError(PermanentError):
    """A data set on disk does not fit what is asked of it (batch too large, split absent, rows missing)."""


class MetricError(PermanentError):
    """A metric was not returned by the user's code, has no direction, or is not a number."""


class RanksDifferError(NotApplicableError, SpecError, MetricError):
    """Processes that train one model together ended with different states or metrics: it is no model for several."""


class ArchiveError(PermanentError):
    """A code archive is too large, of an unknown kind, or has members that leave its folder."""


class RequirementsError(PermanentError):
    """pip could not install the user's requirements; the message carries what pip said."""


class NonFiniteMetricError(PermanentError):
    """A metric became NaN or infinite."""


class ExperimentFileError(PermanentError):
    """An experiment file cannot be read or has mistakes, or names code that cannot be had; a line for each."""


class ClusterFileError(PermanentError):
    """A cluster file has mistakes; the message has a line for each, with the file's line and the field."""


# --- what the store or the services answer ------------------------------------------------------


class UnauthorizedError(PermanentError):
    """The bearer token is missing or wrong."""


class ForbiddenError(PermanentError):
    """Who asks is known, and may not: its role or token lacks the scope, or it is not in the project."""


class NotFoundError(PermanentError):
    """No such experiment, run, worker or code in the store."""


class ConflictError(PermanentError):
    """The store holds something else under this name, or the state does not allow the change."""


class PartlyDoneError(ConflictError):
    """Of what was asked for, a part had its effect; the message says which, and why the rest had none."""


class BadRequestError(PermanentError):
    """The store refused a request as malformed."""


class StoreUnavailableError(RetryableError):
    """kvs_api or the database behind it did not answer in time."""


class ClusterError(PermanentError):
    """The local cluster cannot be started, joined or stopped."""


class ProvisionError(PermanentError):
    """A step of making or removing a cluster failed; the same command goes on from there."""


class ExportError(PermanentError):
    """A tracker refuses what is exported to it, or is none.

    Attributes:
        code: the tracker's own name for the error, where it has one.
    """

    code: str = ""


class TrackerUnavailableError(RetryableError):
    """A tracker does not answer, or has too much to do.

    Attributes:
        retry_after_s: for how long it asks to be left alone, in seconds.
    """

    retry_after_s: float = 0.0


class RunFailedError(PermanentError):
    """A run ended without a result; the message says why."""


class IllegalEventError(PermanentError):
    """An event does not fit the state it is applied to; the state is unchanged, or says that it is torn."""


class UnreadableError(IllegalEventError):
    """An event or a record in the store cannot be read: it is damaged, or another version wrote it; or it does not fit.

    Attributes:
        experiment: whose.
        seq: of the event; 0: it is the record.
        reason: what is wrong with it.
        readable: events that were read with it and come before it.
    """

    experiment = ""
    seq = 0
    reason = ""
    readable: Sequence[Any] = ()

    @classmethod
    def of(cls, experiment: str, seq: int, reason: str, readable: Sequence[Any] = ()) -> UnreadableError:
        """With what is wrong, and what can be done."""
        what = (
            f"event {seq} of experiment {experiment!r}" if seq else f"the record of experiment {experiment!r}"
        )
        error = cls(
            f"{what} cannot be read ({reason}): it is damaged, or another version of Cerebro wrote it. Nothing of the "
            f"experiment runs; other experiments go on. Where a newer version is installed, `cerebro restore "
            f"{experiment}` lets it go on, and `cerebro delete {experiment}` deletes it with its data"
        )
        error.experiment, error.seq, error.reason, error.readable = experiment, seq, reason, tuple(readable)
        return error


class UnreadableClusterLogError(UnreadableError):
    """An event of the cluster's log cannot be read, or does not fit. Every experiment has it among its events."""

    @classmethod
    def of(
        cls, experiment: str, seq: int, reason: str, readable: Sequence[Any] = ()
    ) -> UnreadableClusterLogError:
        """With what is wrong, and what can be done.

        Args:
            experiment: among whose events it was found; empty: in the cluster's log itself.
            seq: its number there.
        """
        where = f", event {seq} of experiment {experiment!r}," if experiment else f", event {seq},"
        error = cls(
            f"an event of the cluster's log{where} cannot be read ({reason}): a newer version of Cerebro wrote it, or "
            "it is damaged. Nothing goes on in the cluster, and nothing is lost. Install the newer version again"
        )
        error.experiment, error.seq, error.reason, error.readable = experiment, seq, reason, tuple(readable)
        return error


class LostEventsError(UnreadableError):
    """Events that were moved out of the database are in a file that is gone, damaged or of another version."""

    @classmethod
    def of(cls, experiment: str, seq: int, reason: str, readable: Sequence[Any] = ()) -> LostEventsError:
        """With what can be done; `seq` is the first of them."""
        whose = f"experiment {experiment!r}" if not experiment.startswith(".") else "the cluster"
        error = cls(f"a part of the log of {whose} cannot be read: {reason}")
        error.experiment, error.seq, error.reason, error.readable = experiment, seq, reason, tuple(readable)
        return error


def found_in(problems: Iterable[Mapping[str, Any]]) -> str:
    """What pydantic found, in one line: where, and what. Not what was given: that may be long, or secret."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in itertools.islice(problems, 5)
    )


class ServerError(RetryableError):
    """kvs_api met an error of its own; its log has the traceback."""


# --- what machines do ---------------------------------------------------------------------------


class ObjectStoreError(RetryableError):
    """An object store did not answer properly although the object should exist."""


class _OfVolumeError(RetryableError):
    """An error of a volume.

    Attributes:
        path: file or folder on the volume; empty if it is not known.
    """

    path = ""

    @classmethod
    def at(cls, message: str, path: object) -> Self:
        """Make an error that names its path."""
        error = cls(message)
        error.path = str(path)
        return error


class VolumeError(_OfVolumeError):
    """A volume cannot be read or written now: it is read-only, away, or refuses access."""


class ShardCorruptError(_OfVolumeError):
    """A data shard's bytes do not match its checksum. Another copy, or preprocessing again, gives the rows."""


class CheckpointCorruptError(RetryableError):
    """A checkpoint is missing or its bytes do not match its checksum."""


class StorageFullError(_OfVolumeError):
    """A volume is full; what was there before is unchanged."""


class DeviceError(RetryableError):
    """A device that the worker has registered is not there, or does not work: the machine's fault."""


class WorkerCrashedError(RetryableError):
    """A child process ended by itself in the middle of a task."""


# --- no error -----------------------------------------------------------------------------------


class PreemptedError(BaseException):
    """Ends user code at a batch or row boundary because its worker was asked to end.

    No `CerebroError`, and not even an `Exception`: nothing went wrong, and a user's ``except Exception`` must not keep
    it.
    """
