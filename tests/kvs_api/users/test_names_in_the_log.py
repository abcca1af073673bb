"""The store writes authors into events and limits members to their own projects."""

from __future__ import annotations

import hashlib
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from cerebro.contract.accounts.identity import Principal, Role
from cerebro.contract.events import (
    ClientEvent,
    DeletionRequested,
    ExperimentArchived,
    LocatorsChanged,
    RunRequested,
    RunStopRequested,
)
from cerebro.contract.records import CodeRecord, ExperimentRecord, SizeRequest
from cerebro.contract.rest.routes import STORE
from cerebro.contract.runs import EtlRequest
from kvs_api.api.stamping import stamped_event
from tests.kvs_api.bench import requested
from tests.kvs_api.users.people import LOCATORS, OPERATOR, SERVICES, Place

LIE = "somebody else"


@pytest.fixture
def ada(place: Place) -> str:
    """A member of project vision with an experiment in it."""
    secret = place.person("ada", Role.MEMBER, "vision")
    assert place.create(secret, author=LIE, owner=LIE).status_code == 200
    return secret


def test_an_experiment_has_its_owner(place: Place, ada: str) -> None:
    """The token decides the owner, and the owner's only project is the default."""
    record = place.store.experiment("one")
    assert (record.author, record.owner, record.project) == ("ada", "ada", "vision")


def test_every_event_names_its_sender(place: Place, ada: str) -> None:
    """A run's project is its experiment's, for any project in the request."""
    requested = RunRequested(
        run="etl-1", request=EtlRequest(code="a" * 64, code_fingerprint="a" * 64), author=LIE, project="rich"
    )
    assert place.append(ada, requested).status_code == 200
    bob = place.person("bob", Role.MEMBER, "text", "vision")
    assert place.append(bob, RunStopRequested(run="etl-1", by=LIE)).status_code == 200
    first, second = place.events()
    assert (first["author"], first["project"]) == ("ada", "vision")
    assert second["by"] == "bob"


@pytest.mark.parametrize(
    "event",
    [
        RunStopRequested(run="etl-1", by=LIE),
        ExperimentArchived(is_archived=True, by=LIE),
        DeletionRequested(by=LIE),
        LocatorsChanged(locators=LOCATORS, after=0, by=LIE),
    ],
)
def test_commands_of_users_outside_the_project_are_refused(
    place: Place,
    ada: str,
    event: RunStopRequested | ExperimentArchived | DeletionRequested | LocatorsChanged,
) -> None:
    """The response is 403 with the project's name; admins are allowed."""
    place.append(ada, requested("etl-1"))
    bob = place.person("bob", Role.MEMBER, "text")
    answer = place.append(bob, event)
    assert answer.status_code == 403
    assert "is in project 'vision', and bob is not" in answer.text
    assert place.ask(bob, "POST /v1/experiments/one/stacks", b"{}").status_code == 403
    assert place.append(OPERATOR, event).status_code in (200, 409)
    assert place.ask(bob, "GET /v1/experiments/one/events").status_code == 200


@pytest.mark.parametrize("kind", get_args(get_args(ClientEvent)[0]))
def test_all_client_events_are_stamped(kind: type[BaseModel]) -> None:
    """Without users mode, events keep the sender's names."""
    field = "by" if "by" in kind.model_fields else "author"
    given: dict[str, Any] = {field: LIE}
    event: Any = kind.model_construct(**given)
    who = Principal(name="ada", role=Role.MEMBER)
    record = ExperimentRecord(name="one", locators=LOCATORS, project="vision")
    assert getattr(stamped_event(event, who, record), field) == "ada"
    assert getattr(stamped_event(event, None, None), field) == LIE


def test_operations_with_names_are_listed_here() -> None:
    """Each view of these operations stamps the names itself; extend the set with any new one."""
    found = {
        operation.name
        for operation in STORE.values()
        if isinstance(operation.body, type)
        and issubclass(operation.body, BaseModel)
        and {"by", "author", "owner"} & operation.body.model_fields.keys()
    }
    assert found == {
        *("create_experiment", "request_size", "put_code", "register_model"),
        *("quarantine_worker", "release_worker", "request_check"),
    }


def test_an_experiment_without_a_project_belongs_to_its_owner(place: Place) -> None:
    """Such experiments are readable by others."""
    ada, bob = place.person("ada"), place.person("bob")
    assert place.create(ada).status_code == 200
    assert place.append(ada, requested("etl-1")).status_code == 200
    answer = place.append(bob, requested("etl-2"))
    assert (answer.status_code, "is ada's and in no project" in answer.text) == (403, True)


@pytest.mark.parametrize(
    ("project", "status", "why"),
    [("vision", 200, ""), ("secret", 403, "ada is not in project 'secret'"), ("", 400, "vision, text")],
)
def test_the_owner_must_be_in_the_project(place: Place, project: str, status: int, why: str) -> None:
    """With several projects the request must name one."""
    answer = place.create(place.person("ada", Role.MEMBER, "vision", "text"), project=project)
    assert answer.status_code == status
    assert why in answer.text


def test_the_dispatcher_acts_as_the_signed_in_user(place: Place, ada: str) -> None:
    """The dispatcher has the signed-in user's rights and name, and none itself."""
    place.append(ada, requested("etl-1"))
    secret = SERVICES[Role.DISPATCHER]
    stop = RunStopRequested(run="etl-1", by=LIE)
    grace = Principal(name="grace", role=Role.MEMBER, projects=("vision",))
    assert place.append(secret, stop).status_code == 403
    assert place.append(secret, stop, acts_for=grace.model_copy(update={"projects": ()})).status_code == 403
    assert place.append(secret, stop, acts_for=grace).status_code == 200
    assert place.events()[-1]["by"] == "grace"


def test_size_requests_and_code_name_their_sender(place: Place, ada: str) -> None:
    """The controller's response to a size request keeps its author."""
    assert place.ask(OPERATOR, "PUT /v1/cluster/size", SizeRequest(workers=3, by=LIE)).json["by"] == "admin"
    answered = SizeRequest(workers=3, by="admin", problem="no room")
    assert place.ask(SERVICES[Role.CONTROLLER], "PUT /v1/cluster/size", answered).json["by"] == "admin"
    assert ("admin", "asked for 3 workers") in place.audited()
    sha256 = hashlib.sha256(b"x").hexdigest()
    code = CodeRecord(sha256=sha256, fingerprint=sha256, class_name="S", source="", encoded="x", author=LIE)
    assert place.ask(ada, f"PUT /v1/code/{sha256}", code).status_code == 200
    assert place.store.code(sha256).author == "ada"
