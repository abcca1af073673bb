"""Authors of written records: replace the names a caller states by its principal's name and project.

`kvs_api.api.views` calls these before it writes records with an author. Pure. On clusters without users (`principal` is
`None`), the caller's statements remain. Access to an experiment is checked elsewhere (`AccountViews`).
"""

from __future__ import annotations

from typing import TypeVar

from cerebro.contract.accounts.identity import Principal, Scope
from cerebro.contract.events import ClientEvent, RunRequested
from cerebro.contract.records import CodeRecord, ExperimentRecord, SizeRequest
from cerebro.contract.stored.health import CheckRequest, QuarantineWorkerRequest, ReleaseRequest
from cerebro.errors import BadRequestError, ForbiddenError

_MachineRequest = TypeVar("_MachineRequest", CheckRequest, QuarantineWorkerRequest, ReleaseRequest)


def stamped_record(record: ExperimentRecord, principal: Principal | None) -> ExperimentRecord:
    """Set owner and project of a new experiment.

    Raises:
        BadRequestError: several projects are possible.
        ForbiddenError: the caller is not in the project.
    """
    if principal is None:
        return record
    try:
        project = principal.chosen_project(record.project)
    except ValueError as cause:
        raise BadRequestError(f"experiment {record.name!r}: {cause}") from cause
    if project and project not in principal.projects and not principal.may(Scope.ADMINISTER):
        raise ForbiddenError(
            f"{principal.name} is not in project {project!r}. Leave out project=... to create a personal experiment, "
            "or ask an admin to add you to the project"
        )
    return record.model_copy(
        update={"author": principal.name, "owner": principal.identity, "project": project}
    )


def stamped_event(
    event: ClientEvent, principal: Principal | None, record: ExperimentRecord | None
) -> ClientEvent:
    """Set the author of a client's event.

    A run also gets the project, for fair share.
    """
    if principal is None:
        return event
    if isinstance(event, RunRequested):
        project = record.project if record is not None else ""
        return event.model_copy(update={"author": principal.name, "project": project})
    return event.model_copy(update={"by": principal.name})


def stamped_code(record: CodeRecord, principal: Principal | None) -> CodeRecord:
    """Set the author of user code."""
    return record if principal is None else record.model_copy(update={"author": principal.name})


def stamped_size(request: SizeRequest, principal: Principal | None) -> SizeRequest:
    """Set the author of a person's size request. The controller's answer keeps the author."""
    is_persons = principal is not None and not principal.may(Scope.CONTROL)
    return (
        request.model_copy(update={"by": principal.name}) if principal is not None and is_persons else request
    )


def stamped_health(request: _MachineRequest, principal: Principal | None) -> _MachineRequest:
    """Set the author of a person's health request. Only the controller acts by rule, with its term."""
    if principal is None or principal.may(Scope.CONTROL):
        return request
    return request.model_copy(update={"by": principal.name, "term": None})
