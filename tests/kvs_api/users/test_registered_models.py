"""In users mode the store writes the author of a registered model, and a name has one project."""

from __future__ import annotations

from cerebro.contract.accounts.identity import Role
from cerebro.contract.stored.registry import AliasRequest, ModelVersion, VersionOutcome
from tests.kvs_api.test_registry import ASKED, COPY
from tests.kvs_api.users.people import SERVICES, Place


def test_the_store_sets_the_author_of_a_version(place: Place) -> None:
    """The audit list has it too."""
    ada = place.person("ada", Role.MEMBER, "vision")
    place.create(ada)
    answer = place.ask(ada, "POST /v1/registry/digits", ASKED.model_copy(update={"author": "somebody else"}))
    assert ModelVersion.model_validate_json(answer.data).source.author == "ada"
    newest = place.store.audit()[-1]
    assert (newest.by, newest.what) == ("ada", "registered m03 of fit-1 of one as digits/1")


def test_only_the_owner_registers_under_a_name_or_moves_its_aliases(place: Place) -> None:
    """This covers other projects and other people's experiments; admins may."""
    ada, bob, eve = (
        place.person(name, role, project)
        for name, role, project in (
            ("ada", Role.MEMBER, "vision"), ("bob", Role.MEMBER, "text"), ("eve", Role.ADMIN, "text"),
        )
    )  # fmt: skip
    place.create(ada)
    assert place.ask(bob, "POST /v1/registry/mine", ASKED).status_code == 403
    assert place.ask(ada, "POST /v1/registry/digits", ASKED).status_code == 200
    outcome = VersionOutcome(version=1, checkpoint=COPY)
    assert place.ask(SERVICES[Role.CONTROLLER], "PUT /v1/registry/digits", outcome).status_code == 200
    champion = AliasRequest(alias="champion", version=1)
    refused = place.ask(bob, "POST /v1/registry/digits/aliases", champion)
    assert refused.status_code == 403
    assert "the registered model 'digits' belongs to vision" in refused.text
    assert place.ask(ada, "POST /v1/registry/digits/aliases", champion).status_code == 200
    assert place.ask(eve, "POST /v1/registry/digits/aliases", champion).status_code == 200
