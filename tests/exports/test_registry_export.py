"""Pushes to the fake MLflow registry: the shared tests, and faults at every request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.cli.program import main
from cerebro.contract.stored.registry import VersionOutcome
from cerebro.errors import ExportError, TrackerUnavailableError
from cerebro.exports.export_loop import ExportLoop
from cerebro.exports.mlflow_registry import RegistryExport
from cerebro.exports.mlflow_server import MlflowServer
from cerebro.exports.registry_values import alias_changes
from cerebro.runtime.kvs.client import KvsClient
from tests.exports.fake_mlflow import Answer, serving
from tests.exports.fake_registry import FakeRegistry
from tests.exports.logged import LogStore, record
from tests.exports.registry_contract import RegistryContract, aliases, model, version, versions
from tests.exports.test_mlflow import Killed, Mortal, patient
from tests.kvs_api.real import Service

names = st.sampled_from(["a", "b", "c"])
numbers = st.sampled_from(["1", "2", "3", "4"])


@pytest.fixture
def fake() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
def address(fake: FakeRegistry) -> Iterator[str]:
    with serving(fake) as there:
        yield there


class TestStandIn(RegistryContract):
    """The shared tests with the fake."""

    @pytest.fixture(autouse=True)
    def remember(self, fake: FakeRegistry) -> None:
        self.fake = fake

    def artifact(self, source: str) -> bytes:
        return self.fake.files[f"{source.removeprefix('mlflow-artifacts:/')}/model.pt"]


@pytest.mark.slow
@pytest.mark.parametrize("is_sent", [False, True])
def test_a_push_killed_at_any_request_duplicates_no_version(
    fake: FakeRegistry, address: str, is_sent: bool, tmp_path: Path
) -> None:
    """The push is killed at each request, and once more at the fifth request afterwards."""
    (tmp_path / "model.pt").write_bytes(b"weights")
    of = model("digits", 1, 2, 3, champion=2, old=1)

    def attempt(server: MlflowServer) -> None:
        RegistryExport(server, lambda _: tmp_path / "model.pt").push([of])

    for last in range(1, 1000):
        fake.models.clear()
        fake.runs.clear()
        is_killed = False
        try:
            attempt(Mortal(address, last, is_sent=is_sent))
        except Killed:
            is_killed = True
            with suppress(Killed):
                attempt(Mortal(address, 5, is_sent=is_sent))
            attempt(MlflowServer(address, {}))
        found = versions(address, "digits")
        assert sorted(found) == ["digits/1", "digits/2", "digits/3"]
        assert len({each["run_id"] for each in found.values()}) == len(fake.runs) == 3
        assert aliases(address, "digits") == {"champion": "digits/2", "old": "digits/1"}
        if not is_killed:
            break
    assert last > 30


@pytest.mark.parametrize("status", [429, 500])
@pytest.mark.parametrize("is_done", [False, True])
def test_with_every_third_request_failing_no_version_is_duplicated(
    fake: FakeRegistry, address: str, status: int, is_done: bool
) -> None:
    """The server may or may not have executed the failed request."""

    def fault(number: int, call: str, done: bool) -> Answer | None:
        return (status, {}) if number % 3 == 0 and done is is_done and call != "a row" else None

    fake.fault = fault
    server, _ = patient(address)
    RegistryExport(server).push([model("digits", 1, 2, 3, 4, champion=4)])
    fake.fault = lambda *_: None
    assert len(versions(address, "digits")) == 4
    assert aliases(address, "digits") == {"champion": "digits/4"}


def test_an_unchanged_model_causes_no_requests(
    fake: FakeRegistry, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--follow` polls every five seconds, so an unchanged model must cost no requests."""
    registry = RegistryExport(MlflowServer(address, {}))
    registry.push([model("digits", 1)])
    monkeypatch.setattr(fake, "answer", lambda *_: pytest.fail("asked"))
    registry.push([model("digits", 1)])
    monkeypatch.undo()
    registry.push([model("digits", 1, champion=1)])
    assert aliases(address, "digits") == {"champion": "digits/1"}


@given(st.dictionaries(names, numbers), st.dictionaries(names, numbers), st.sets(names), st.sets(numbers))
def test_alias_changes_are_idempotent_and_keep_foreign_aliases(
    expected: dict[str, str], there: dict[str, str], ours: set[str], ids: set[str]
) -> None:
    """A second pass changes nothing, and aliases set by others on other versions stay."""
    versions = ids | set(expected.values())
    changes = alias_changes(expected, there, ours=ours, versions=versions)
    after = {a: v for a, v in there.items() if a not in changes.removed} | changes.moved
    known = set(expected) - set(changes.foreign)
    again = alias_changes(expected, after, ours=known, versions=versions)
    assert (again.moved, again.removed) == ({}, ())
    for alias, number in there.items():
        if alias not in ours and number not in versions:
            assert after[alias] == number
    assert all(after[alias] == number for alias, number in expected.items() if alias not in changes.foreign)


def test_a_follower_pushes_models_and_logs_a_problem_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refused push does not stop the experiments, and an outage is retried."""
    calls = []

    def also() -> None:
        calls.append(1)
        raise ExportError("refused") if len(calls) < 3 else TrackerUnavailableError("away")

    follower = ExportLoop(LogStore([], record()), lambda _: pytest.fail("none"), ["none"], also)
    follower.poll()
    follower.poll()
    with pytest.raises(TrackerUnavailableError):
        follower.poll()
    assert caplog.text.count("registered models were not exported: refused") == 1


def test_the_command_pushes_the_models_of_the_store(
    service: Service,
    kvs: KvsClient,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A push needs no experiment name unless `--follow` is given."""
    monkeypatch.setenv("CEREBRO_SERVER", service.address)
    monkeypatch.setenv("CEREBRO_TOKEN", service.settings.token)
    ready = version("digits", 1)
    kvs.create_experiment(ready.experiment)
    kvs.register_model("digits", ready.source)
    kvs.settle_version("digits", VersionOutcome(version=1, checkpoint=ready.checkpoint))
    command = ["export", "mlflow", "--registry", "--url", address]
    assert main(command) == 0
    assert f"1 new versions of registered models are at {address}" in capsys.readouterr().out
    assert sorted(versions(address, "digits")) == ["digits/1"]
    assert main([*command, "--follow"]) == 1
    assert "needs experiments: name them, or give --all" in capsys.readouterr().err
