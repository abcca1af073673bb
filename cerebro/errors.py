"""All errors that Cerebro raises on purpose.

`RetryableError` and `PermanentError` say whether a retry can help; callers never parse messages. A message names
the problem, the object and the next step. Adapters translate foreign errors with ``raise ... from``. To add an
error, derive it from one of the two classes, in the section below that names its cause.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self


class CerebroError(Exception):
    """Base class of all errors that Cerebro raises on purpose.

    Attributes:
        user_traceback: traceback of user code that failed in another process; otherwise empty.
    """

    user_traceback: str = ""


class PermanentError(CerebroError):
    """An error that a retry without a change repeats."""


class RetryableError(CerebroError):
    """An error that may disappear if the caller retries, later or elsewhere."""


# --- user input ---------------------------------------------------------------------------------


class LocatorError(PermanentError):
    """A dataset locator that names a missing, unreadable or unsupported file."""


class MetadataError(PermanentError):
    """A metadata table without ``id``, with duplicate ids, or with too few rows."""


class SpecError(PermanentError):
    """An ETLSpec or SubEpochSpec that cannot be used, sent to a worker or restored there."""


class NotApplicableError(PermanentError):
    """A technique that cannot train this model on these devices; the message has the reason."""


class SearchSpaceError(PermanentError):
    """A search space that is empty, has an invalid value, or lacks ``batch_size``."""


class SearchError(PermanentError, ValueError):
    """A search with invalid arguments, or a procedure that requests an impossible action."""


class MissingPackageError(PermanentError, ImportError):
    """A Python package that Cerebro needs and that is not installed."""

    @classmethod
    def from_import(cls, cause: ModuleNotFoundError) -> Self:
        """Name the package of a failed import, and the command that installs it."""
        return cls(
            f"the package {cause.name} is not installed for {sys.executable}: pip install 'cerebro-platform[local]' to "
            "use this machine, or 'cerebro-platform[client]' for a cluster elsewhere"
        )


class RowError(PermanentError):
    """A row function that failed too often, or returned different fields for different rows.

    Attributes:
        rows_failed: number of failed rows, if that is the reason; otherwise 0.
    """

    rows_failed = 0


class InstanceError(PermanentError):
    """A scheduling instance that cannot be read or has no feasible schedule."""


class ScheduleError(PermanentError):
    """A schedule that breaks an invariant, such as one sub-epoch at a time per device."""


class DataError(PermanentError):
    """An argument that does not fit the data set, such as a missing split."""


class MetricError(PermanentError):
    """A metric that user code does not return, without a direction, or not a number."""


class RanksDifferError(NotApplicableError, SpecError, MetricError):
    """Ranks that trained one model to different states or metrics."""


class ArchiveError(PermanentError):
    """A code archive that is too large, malformed, or has paths outside its folder."""


class RequirementsError(PermanentError):
    """User requirements that pip could not install; the message has pip's output."""


class NonFiniteMetricError(PermanentError):
    """A metric that became NaN or infinite."""


class ExperimentFileError(PermanentError):
    """An experiment file with mistakes or missing code; one line for each."""


class ClusterFileError(PermanentError):
    """A cluster file with mistakes; the message has line number and field of each."""


# --- store and services ------------------------------------------------------------------------


class UnauthorizedError(PermanentError):
    """A missing or wrong bearer token."""


class ForbiddenError(PermanentError):
    """A request that the caller's role, token scope or project does not allow."""


class NotFoundError(PermanentError):
    """An experiment, run, model, worker or code that the store does not have."""


class ConflictError(PermanentError):
    """A change that the current state does not allow, or a used name."""


class PartlyDoneError(ConflictError):
    """A request that succeeded in part; the message lists both parts and the reasons."""


class BadRequestError(PermanentError):
    """A malformed request, refused by the store."""


class StoreUnavailableError(RetryableError):
    """kvs_api, or the database behind it, did not answer in time."""


class ClusterError(PermanentError):
    """A cluster that cannot be started, reached or stopped."""


class ProvisionError(PermanentError):
    """A failed step of creating or deleting a cluster; the same command continues from there."""


class ExportError(PermanentError):
    """An export that a tracker refused, or an address that is not a tracker.

    Attributes:
        code: error code of the tracker, if it returned one.
    """

    code: str = ""


class TrackerUnavailableError(RetryableError):
    """A tracker that does not answer or is overloaded.

    Attributes:
        retry_after_s: seconds to wait before the next request, as the tracker demands. Default 0.
    """

    retry_after_s: float = 0.0


class RunFailedError(PermanentError):
    """A run that ended without a result; the message has the reason."""


class IllegalEventError(PermanentError):
    """An event that does not fit the state. The state is unchanged, or marked as torn."""


class UnreadableError(IllegalEventError):
    """A stored event or record that is damaged, from another version, or inconsistent.

    Attributes:
        experiment: name of the experiment.
        seq: number of the event; 0 for the experiment's record.
        reason: description of the problem.
        readable: events of the same read that precede it.
    """

    experiment = ""
    seq = 0
    reason = ""
    readable: Sequence[Any] = ()

    @classmethod
    def for_event(
        cls, experiment: str, seq: int, reason: str, readable: Sequence[Any] = ()
    ) -> UnreadableError:
        """Create the error with advice for the user."""
        subject = f"event {seq}" if seq else "the record"
        error = cls(
            f"{subject} of experiment {experiment!r} cannot be read ({reason}): it is damaged, or another version of "
            f"Cerebro wrote it. The experiment is paused; other experiments continue. Install the newer version and "
            f"run `cerebro restore {experiment}`, or delete the experiment and its data with "
            f"`cerebro delete {experiment}`"
        )
        error.experiment, error.seq, error.reason, error.readable = experiment, seq, reason, tuple(readable)
        return error


class UnreadableClusterLogError(UnreadableError):
    """An unreadable event of the cluster log; it affects all experiments."""

    @classmethod
    def for_event(
        cls, experiment: str, seq: int, reason: str, readable: Sequence[Any] = ()
    ) -> UnreadableClusterLogError:
        """Create the error with advice for the user.

        Args:
            experiment: experiment among whose events it was found; empty for the cluster log itself.
            seq: number of the event there.
            reason: description of the problem.
            readable: events of the same read that precede it.
        """
        where = f", event {seq} of experiment {experiment!r}," if experiment else f", event {seq},"
        error = cls(
            f"an event of the cluster log{where} cannot be read ({reason}): a newer version of Cerebro wrote it, or "
            "it is damaged. All runs are paused and no data is lost. Install the newer version again"
        )
        error.experiment, error.seq, error.reason, error.readable = experiment, seq, reason, tuple(readable)
        return error


class LostEventsError(UnreadableError):
    """Archived events whose file is missing, damaged or from another version."""

    @classmethod
    def for_event(
        cls, experiment: str, seq: int, reason: str, readable: Sequence[Any] = ()
    ) -> LostEventsError:
        """Create the error; `seq` is the first lost event."""
        owner = f"experiment {experiment!r}" if not experiment.startswith(".") else "the cluster"
        error = cls(f"a part of the log of {owner} cannot be read: {reason}")
        error.experiment, error.seq, error.reason, error.readable = experiment, seq, reason, tuple(readable)
        return error


def validation_summary(problems: Iterable[Mapping[str, Any]]) -> str:
    """Summarise up to five pydantic errors in one line, without the invalid values.

    Values are omitted because they may be long or secret.
    """
    return "; ".join(
        f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in itertools.islice(problems, 5)
    )


class PluginError(PermanentError):
    """An installed package cannot add its extension: its import failed, or its name is taken."""


class ServerError(RetryableError):
    """An internal error of kvs_api; its log has the traceback."""


# --- machines ------------------------------------------------------------------------------------


class ObjectStoreError(RetryableError):
    """An object store that failed to deliver an existing object."""


class _VolumePathError(RetryableError):
    """Base class of errors of a volume.

    Attributes:
        path: file or folder on the volume; empty when unknown.
    """

    path = ""

    @classmethod
    def at(cls, message: str, path: object) -> Self:
        error = cls(message)
        error.path = str(path)
        return error


class VolumeError(_VolumePathError):
    """A volume that is read-only, missing, or denies access."""


class ShardCorruptError(_VolumePathError):
    """A data shard that does not match its checksum; a replica or preprocessing restores it."""


class CheckpointCorruptError(RetryableError):
    """A checkpoint that is missing or does not match its checksum."""


class StorageFullError(_VolumePathError):
    """A full volume; existing files are unchanged."""


class DeviceError(RetryableError):
    """A registered device of a worker that is missing or broken."""


class WorkerCrashedError(RetryableError):
    """A child process that died during a task."""


# --- preemption ---------------------------------------------------------------------------------


class PreemptedError(BaseException):
    """Ends user code at a batch or row boundary, to release its task.

    Not a `CerebroError` and not an `Exception`: nothing failed, and ``except Exception`` in user code must not catch
    it.
    """
