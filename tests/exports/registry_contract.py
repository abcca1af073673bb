"""Tests of pushes to a model registry, shared by the real MLflow and the fake."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cerebro.contract.records import Locator, Locators
from cerebro.contract.stored.registry import ModelVersion, RegisteredModel, Registration
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.exports.mlflow_registry import RegistryExport
from cerebro.exports.mlflow_server import MlflowServer
from cerebro.exports.projection import PageKey, Projection
from tests.exports.logged import record, story
from tests.exports.tracking_contract import export, exported_rows


def version(name: str, number: int, *, experiment: str = "", state: Any = "ready") -> ModelVersion:
    """Make a model version, by default from the experiment of `story`."""
    of = record(experiment or f"of-{name}").model_copy(
        update={"locators": Locators(train=Locator(metadata="m.csv"))}
    )
    reference = CheckpointRef(name=f".registry/{name}/v{number}/model.pt", checksum="c", size=1)
    return ModelVersion(
        name=name,
        version=number,
        state=state,
        error="gone" if state == "failed" else "",
        created=100.0 + number,
        source=Registration(
            experiment=of.name, run="fit-1", model="m00", epoch=2, checkpoint=reference, code="a" * 64,
            dataset="d", hyperparams={"lr": 0.1, "läyers": [1, 2]}, metric="loss", value=0.5,
            metrics={"valid/loss": 0.5}, author="ada",
        ),
        experiment=of,
        checkpoint=reference if state == "ready" else None,
    )  # fmt: skip


def model(name: str, *numbers: int, **aliases: int) -> RegisteredModel:
    """Make a registered model with these versions."""
    return RegisteredModel(
        name=name, versions=tuple(version(name, number) for number in numbers), aliases=aliases
    )


def push(address: str, of: RegisteredModel, folder: Path | None = None) -> int:
    """Push a model and return the number of created versions."""
    checkpoint = (lambda reference: folder / "model.pt") if folder else None
    registry = RegistryExport(MlflowServer(address, {}, patience_s=30), checkpoint)
    registry.push([of])
    return registry.sent


def versions(address: str, name: str) -> dict[str, dict[str, Any]]:
    """Return a model's versions by their Cerebro version, and check that each exists once."""
    server = MlflowServer(address, {}, patience_s=5)
    found: dict[str, dict[str, Any]] = {}
    page = ""
    while True:
        more = {"page_token": page} if page else {}
        answer = server.get("model-versions/search", filter=f"name='{name}'", max_results="100", **more)
        for each in answer.get("model_versions", ()):
            tags = {tag["key"]: tag["value"] for tag in each.get("tags", ())}
            key = tags.get("cerebro.version", f"foreign {each['version']}")
            assert key not in found, f"two versions for {key}"
            found[key] = each | {"tags": tags}
        page = answer.get("next_page_token", "")
        if not page:
            return found


def aliases(address: str, name: str) -> Mapping[str, str]:
    """Return the Cerebro version behind each alias."""
    registered = MlflowServer(address, {}).get("registered-models/get", name=name)["registered_model"]
    of = {each["version"]: key for key, each in versions(address, name).items()}
    return {each["alias"]: of[str(each["version"])] for each in registered.get("aliases", ())}


class RegistryContract:
    """The shared tests; a subclass provides `address`."""

    @pytest.fixture
    def name(self) -> str:
        """A model name that is new to the server."""
        return f"r{uuid.uuid4().hex[:12]}"

    def test_each_ready_version_is_pushed_once(self, address: str, name: str) -> None:
        """Repeated pushes add nothing; a version that is still copying follows once it is ready."""
        assert push(address, model(name, 1, 2)) == 2
        assert push(address, model(name, 1, 2)) == 0
        more = version(name, 3, state="copying"), version(name, 4, state="failed")
        waiting = RegisteredModel(name=name, versions=(version(name, 1), version(name, 2), *more))
        assert push(address, waiting) == 0
        assert push(address, model(name, 1, 2, 3)) == 1
        found = versions(address, name)
        assert sorted(found) == [f"{name}/1", f"{name}/2", f"{name}/3"]
        pushed = found[f"{name}/3"]
        assert (pushed["tags"]["cerebro.author"], pushed["tags"]["cerebro.value"]) == ("ada", "0.5")
        run = MlflowServer(address, {}).get("runs/get", run_id=pushed["run_id"])["run"]
        assert (run["info"]["run_name"], run["info"]["status"]) == (f"{name}/3", "FINISHED")
        assert {each["key"]: each["value"] for each in run["data"]["params"]} == {"lr": "0.1"}

    def test_a_version_refers_to_the_exported_run_of_its_model(self, address: str, name: str) -> None:
        """The run exists already, so the push creates no copy."""
        of, log = record(f"of-{name}"), story().log
        export(address, of, log)
        push(address, model(name, 1))
        run = exported_rows(address, of, log)[PageKey("fit-1", "m00")].info["run_id"]
        assert Projection(of).id_of(PageKey("fit-1", "m00"))
        assert versions(address, name)[f"{name}/1"]["run_id"] == run

    def test_pushed_aliases_follow_and_foreign_aliases_stay(self, address: str, name: str) -> None:
        """Only aliases set by a push are moved or removed."""
        push(address, model(name, 1, 2, champion=1, old=1))
        assert aliases(address, name) == {"champion": f"{name}/1", "old": f"{name}/1"}
        push(address, model(name, 1, 2, champion=2, latest=1, v1=1))
        assert aliases(address, name) == {"champion": f"{name}/2"}
        server, known = MlflowServer(address, {}), versions(address, name)[f"{name}/1"]
        given = {"source": known["source"], "run_id": known["run_id"], "tags": []}
        theirs = server.post("model-versions/create", name=name, **given)
        number = str(theirs["model_version"]["version"])
        for alias, of in (("best", number), ("theirs", "1")):
            server.post("registered-models/alias", name=name, alias=alias, version=of)
        push(address, model(name, 1, 2, champion=1, best=1))
        assert aliases(address, name) == {
            "champion": f"{name}/1", "best": f"foreign {number}", "theirs": f"{name}/1",
        }  # fmt: skip

    def test_checkpoints_are_sent_on_request(self, address: str, name: str, tmp_path: Path) -> None:
        """The file is sent once, with the version or later."""
        (tmp_path / "model.pt").write_bytes(b"weights")
        push(address, model(name, 1))
        push(address, model(name, 1, 2), tmp_path)
        for number in (1, 2):
            pushed = versions(address, name)[f"{name}/{number}"]
            assert pushed["tags"]["cerebro.checkpoint"] == f".registry/{name}/v{number}/model.pt"
            assert self.artifact(pushed["source"]) == b"weights"
        (tmp_path / "model.pt").unlink()
        push(address, model(name, 1, 2), tmp_path)  # does not read the file again

    def artifact(self, source: str) -> bytes:
        """Return a version's file by its source."""
        raise NotImplementedError
