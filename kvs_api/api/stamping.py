"""Authors of written records: replaces the caller's statements by the principal's name and project.

Pure. On clusters without users (`None`), the caller's statements stand.
"""

from __future__ import annotations

from typing import TypeVar

from cerebro.contract.accounts.identity import Principal, Scope
from cerebro.contract.events import ClientEvent, RunRequested
from cerebro.contract.records import CodeRecord, ExperimentRecord, SizeRequest
from cerebro.contract.stored.health import CheckRequest, QuarantineWorkerRequest, ReleaseRequest
from cerebro.errors import BadRequestError, ForbiddenError

_OfWorker = TypeVar("_OfWorker", CheckRequest, QuarantineWorkerRequest, ReleaseRequest)


def stamped_record(record: ExperimentRecord, who: Principal | None) -> ExperimentRecord:
    """Set owner and project of a new experiment.

    Raises:
        BadRequestError: several projects are possible.
        ForbiddenError: the caller is not in the project.
    """
    if who is None:
        return record
    try:
        project = who.chosen_project(record.project)
    except ValueError as cause:
        raise BadRequestError(f"experiment {record.name!r}: {cause}") from cause
    if project and project not in who.projects and not who.may(Scope.ADMINISTER):
        raise ForbiddenError(
            f"{who.name} is not in project {project!r}: leave project=... out for an experiment of your own, or ask an "
            "admin to be added"
        )
    return record.model_copy(update={"author": who.name, "owner": who.identity, "project": project})


def stamped_event(event: ClientEvent, who: Principal | None, record: ExperimentRecord | None) -> ClientEvent:
    """Set the author of a client's event.

    A run also gets the project, for fair share.
    """
    if who is None:
        return event
    if isinstance(event, RunRequested):
        project = record.project if record is not None else ""
        return event.model_copy(update={"author": who.name, "project": project})
    return event.model_copy(update={"by": who.name})


def stamped_code(record: CodeRecord, who: Principal | None) -> CodeRecord:
    """Set the author of user code."""
    return record if who is None else record.model_copy(update={"author": who.name})


def stamped_size(asked: SizeRequest, who: Principal | None) -> SizeRequest:
    """Set the author of a person's size request. The controller's answer keeps the author."""
    is_persons = who is not None and not who.may(Scope.CONTROL)
    return asked.model_copy(update={"by": who.name}) if who is not None and is_persons else asked


def stamped_health(asked: _OfWorker, who: Principal | None) -> _OfWorker:
    """Set the author of a person's health request. Only the controller acts by rule, with its term."""
    if who is None or who.may(Scope.CONTROL):
        return asked
    return asked.model_copy(update={"by": who.name, "term": None})
