"""Registered models in the store: version numbers, immutable fields, aliases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from cerebro.cli.experiments.registry import lines
from cerebro.client.models.registry import find_version
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest import api
from cerebro.contract.stored.registry import AliasRequest, ModelVersion, Registration, VersionOutcome
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.errors import BadRequestError, ConflictError, NotFoundError, UnreadableError
from cerebro.runtime.kvs.client import KvsClient
from kvs_api.store import keys
from tests.kvs_api.bench import LOCATORS
from tests.kvs_api.real import Service

ASKED = Registration(
    experiment="one",
    run="fit-1",
    model="m03",
    epoch=4,
    checkpoint=CheckpointRef(name="one/fit-1/m03/u1.pt", checksum="xxh3_64:0", size=3),
    code="0" * 64,
    hyperparams={"lr": 0.1},
    metric="accuracy",
    value=0.9,
    author="ada",
)
COPY = CheckpointRef(name=".registry/digits/v1/model.pt", checksum="xxh3_64:0", size=3)


@pytest.fixture
def one(kvs: KvsClient) -> KvsClient:
    kvs.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    return kvs


def ready(kvs: KvsClient, name: str = "digits") -> ModelVersion:
    """Register one more version with its files copied."""
    number = kvs.register_model(name, ASKED).version
    return kvs.settle_version(name, VersionOutcome(version=number, checkpoint=COPY))


def test_versions_are_numbered_from_1_and_do_not_change(one: KvsClient) -> None:
    """Each name has its own numbers, and versions keep the experiment's record of that time."""
    versions = [one.register_model(name, ASKED) for name in ("digits", "digits", "other")]
    assert [(each.name, each.version, each.state) for each in versions] == [
        ("digits", 1, "copying"), ("digits", 2, "copying"), ("other", 1, "copying"),
    ]  # fmt: skip
    assert versions[0].source == ASKED
    assert versions[0].experiment == one.experiment("one")
    assert [model.name for model in one.registry()] == ["digits", "other"]
    assert one.registered_model("digits").versions == (versions[0], versions[1])


def test_a_repeated_call_creates_one_version(one: KvsClient) -> None:
    """The request's id identifies it."""
    content = ASKED.model_dump_json().encode()
    answers = [
        ModelVersion.model_validate_json(
            one.send("POST", "/v1/registry/digits", content, 0.0, {api.ONCE: identity})
        )
        for identity in ("a", "a", "b")
    ]
    assert [answer.version for answer in answers] == [1, 1, 2]


def test_concurrent_registrations_get_different_numbers(service: Service, one: KvsClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: one.register_model("digits", ASKED).version, range(24)))
    assert sorted(numbers) == list(range(1, 25))


def test_only_the_first_outcome_of_a_copy_counts(one: KvsClient) -> None:
    """A later outcome changes nothing."""
    assert ready(one).checkpoint == COPY
    again = one.settle_version("digits", VersionOutcome(version=1, error="gone"))
    assert (again.state, again.error, again.checkpoint) == ("ready", "", COPY)
    assert one.registry(copying=True) == ()


def test_an_alias_can_be_moved_and_deleted(one: KvsClient) -> None:
    """It may only point to a version that is ready."""
    ready(one)
    ready(one)
    for number in (1, 2):
        one.move_alias("digits", AliasRequest(alias="champion", version=number))
        assert one.registered_model("digits").aliases == {"champion": number}
    assert one.registered_model("digits").aliases_of(2) == ("champion",)
    assert one.move_alias("digits", AliasRequest(alias="champion", version=None)).aliases == {}
    with pytest.raises(NotFoundError, match=r"digits has no alias 'champion': it has versions 1 to 2"):
        one.move_alias("digits", AliasRequest(alias="champion", version=None))


def test_an_alias_of_a_missing_or_unready_version_is_refused(one: KvsClient) -> None:
    """The error lists the existing versions."""
    with pytest.raises(NotFoundError, match=r"no model is registered as 'digits'; registered are: none yet"):
        one.move_alias("digits", AliasRequest(alias="champion", version=1))
    one.register_model("digits", ASKED)
    with pytest.raises(ConflictError, match="version 1 of digits is not ready: its files are being copied"):
        one.move_alias("digits", AliasRequest(alias="champion", version=1))
    one.settle_version("digits", VersionOutcome(version=1, error="it is gone"))
    with pytest.raises(ConflictError, match="is not ready: it is gone"):
        one.move_alias("digits", AliasRequest(alias="champion", version=1))
    with pytest.raises(
        NotFoundError, match=r"digits has no version 2: it has version 1, and of aliases none"
    ):
        one.move_alias("digits", AliasRequest(alias="champion", version=2))


@pytest.mark.parametrize("name", ["Digits", "a/b", "-a", "a" * 51])
def test_an_invalid_name_is_refused(one: KvsClient, name: str) -> None:
    """The name becomes a folder."""
    with pytest.raises((BadRequestError, NotFoundError)):
        one.register_model(name, ASKED)
    assert one.registry() == ()


def test_a_version_outlives_its_experiment(one: KvsClient, service: Service) -> None:
    """It keeps all fields."""
    version = ready(one)
    with redis.Redis.from_url(service.database.url) as database:
        database.delete(keys.experiment("one"))
    assert one.registered_model("digits").versions == (version,)


@pytest.mark.parametrize("content", ['{"future": 1}', "damaged", "[1]"])
def test_a_version_that_cannot_be_read_is_named_and_hides_no_other(
    service: Service, one: KvsClient, content: str
) -> None:
    """Lists and direct reads give the error with the remedy. Other versions and models stay usable."""
    for name in ("digits", "digits", "other"):
        ready(one, name)
    waiting = [one.register_model("digits", ASKED).version for _ in range(2)]
    with redis.Redis.from_url(service.database.url) as database:
        for number in (1, waiting[0]):
            database.hset(keys.registered("digits"), f"version:{number}", content)
    digits, other = one.registry()
    assert [version.version for version in digits.versions] == [2, waiting[1]]
    assert [each.version for each in digits.unreadable] == [1, waiting[0]]
    assert "version 1 of the registered model 'digits' cannot be read" in digits.unreadable[0].reason
    assert (digits, other.unreadable) == (one.registered_model("digits"), ())
    assert [(m.name, m.versions[0].version) for m in one.registry(copying=True)] == [("digits", waiting[1])]
    assert one.move_alias("digits", AliasRequest(alias="champion", version=2)).aliases == {"champion": 2}
    with pytest.raises(UnreadableError, match=r"version 1 of the registered model 'digits' cannot be read"):
        one.move_alias("digits", AliasRequest(alias="champion", version=1))
    with pytest.raises(UnreadableError, match="version 1 of the registered model"):
        find_version(digits, "", 1)
    with pytest.raises(NotFoundError, match="it has versions 1 to 4"):
        one.move_alias("digits", AliasRequest(alias="champion", version=9))
    text_lines = lines((digits, other), with_all=True)
    assert len([line for line in text_lines if "cannot be read" in line]) == 2
    assert any(line.startswith("  digits/2 ") for line in text_lines)


def test_a_store_without_a_registry_lists_no_models(kvs: KvsClient) -> None:
    """Applies to stores of older versions."""
    assert kvs.registry() == kvs.registry(copying=True) == ()
