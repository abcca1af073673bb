"""Disk usage of experiments: measured cheaply and reported to the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.contract.accounts.identity import Role
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from controller.storage import measured_bytes
from controller.storage.measured_bytes import MeasuredBytes, folder_bytes
from tests.kvs_api.bench import requested
from tests.kvs_api.real import Service
from tests.kvs_api.users.people import OPERATOR, SERVICES, Place, opened


def write(path: Path, num_bytes: int) -> None:
    """Write a file of this size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * num_bytes)


@pytest.fixture
def place(service: Service) -> Place:
    """A store with users."""
    return opened(service.database)


@pytest.fixture
def controller(service: Service, place: Place) -> Iterator[KvsClient]:
    """The controller's client of the store."""
    with Service(service.database, has_users=True, service_tokens=SERVICES, token=OPERATOR) as users_service:
        client = users_service.client(SERVICES[Role.CONTROLLER])
        yield client
        client.close()


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "v")})


def used(place: Place) -> dict[str, int]:
    """Return the bytes of each project."""
    return {usage.name: usage.bytes for usage in place.store.usages() if usage.bytes}


def test_only_checkpoints_and_predictions_are_measured(
    place: Place, controller: KvsClient, volumes: Volumes, tmp_path: Path
) -> None:
    """A second measurement gives the same result. Trash, registered models, other names and link targets do
    not count."""
    ada = place.person("ada", Role.MEMBER, "vision")
    place.create(ada)
    checkpoints, predictions = volumes.checkpoints, volumes.shared / "predictions"
    write(checkpoints / "one/fit-1/m00/a.pt", 1000)
    write(predictions / "one/predict-1/m00.arrow", 30)
    for other in (".trash/one/a.pt", ".registry/digits/v1/model.pt", "Not A Name/x", "unknown/fit-1/x"):
        write(checkpoints / other, 5)
    write(tmp_path / "elsewhere/x", 500)
    (checkpoints / "one/link").symlink_to(tmp_path / "elsewhere")
    (checkpoints / "one/file").symlink_to(tmp_path / "elsewhere/x")
    (checkpoints / "two").symlink_to(checkpoints / "one")
    measured = MeasuredBytes(controller, volumes)
    measured.measure()
    assert used(place) == {"vision": 1030}
    (checkpoints / "one/fit-1/m00/a.pt").unlink()
    measured.measure()
    assert used(place) == {"vision": 30}
    for path in (predictions / "one/predict-1/m00.arrow", checkpoints / "one/link", checkpoints / "one/file"):
        path.unlink()
    MeasuredBytes(controller, volumes).measure()  # a restarted controller
    assert used(place) == {}


def test_experiments_with_open_runs_are_measured_in_each_pass(
    place: Place, controller: KvsClient, volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass stops after its time limit, and several passes cover all experiments."""
    ada = place.person("ada", Role.MEMBER, "vision")
    names = [f"e{number}" for number in range(7)]
    for name in names:
        place.create(ada, name)
        write(volumes.checkpoints / name / "a.pt", 1)
    assert place.append(ada, requested("etl-1"), "e3").status_code == 200
    looked: list[str] = []

    def counted(folder: Path) -> int:
        if folder.parent == volumes.checkpoints:
            looked.append(folder.name)
        return folder_bytes(folder)

    monkeypatch.setattr(measured_bytes, "folder_bytes", counted)
    # The time limit permits two experiments without open runs.
    measured = MeasuredBytes(controller, volumes, monotonic=lambda: float(len(looked)))
    observed = []
    for _ in range(4):
        looked.clear()
        measured.measure()
        observed.append(looked.copy())
    assert all(look[0] == "e3" and len(look) == 3 for look in observed)
    assert {name for look in observed for name in look} == set(names)
    assert used(place) == {"vision": 7}


def test_a_removed_folder_counts_as_zero_bytes(tmp_path: Path) -> None:
    """So does a folder that never existed."""
    assert folder_bytes(tmp_path / "none") == 0
