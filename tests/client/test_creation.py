"""When `Experiment` reserves a name, and when locators can be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro import Above, ETLSpec, Experiment, Search, SubEpochSpec
from cerebro.client.connection import Connection
from cerebro.client.files import MountedFiles
from cerebro.contract.events import ControllerEvent, RunFinished, RunRequested, RunStarted
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.errors import DataError, LocatorError, MetricError, NotFoundError, SpecError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from tests.kvs_api.bench import LONG_S, note
from tests.kvs_api.real import Service


@pytest.fixture
def kvs(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KvsClient]:
    """A store of a local cluster that `Experiment` connects to."""
    client = service.client()
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")})
    connection = Connection(kvs=client, volumes=volumes, files=MountedFiles(volumes), is_local=True)
    monkeypatch.setattr("cerebro.client.experiment.connect", lambda server, token: connection)
    yield client
    client.close()


def table(folder: Path, name: str = "train.csv") -> dict[str, str]:
    """Locators of an existing metadata table."""
    (folder / name).write_text("id,image\n1,a.png\n")
    return {"train": str(folder / name)}


def after_etl(kvs: KvsClient, outcome: str) -> None:
    """Append an ETL run with this outcome."""
    kvs.append("one", RunRequested(run="etl-1", request=EtlRequest(code="0" * 64, code_fingerprint="1" * 64)))
    term = kvs.lead("controller-0", LONG_S).term
    events: list[ControllerEvent] = [
        RunStarted(run="etl-1", plan=EtlPlan(dataset="d", splits={})),
        RunFinished.model_validate({"run": "etl-1", "outcome": outcome}),
    ]
    request = api.DecideRequest(term=term, after=1, steps=tuple(note(event) for event in events))
    assert [each.outcome for each in kvs.decide("one", request).outcomes] == ["done"] * 2


def test_a_missing_file_does_not_reserve_the_name(kvs: KvsClient, tmp_path: Path) -> None:
    """The error names the file, and the name stays free."""
    with pytest.raises(LocatorError, match=r"metadata of 'train': .*trian\.csv does not exist"):
        Experiment("one", locators={"train": str(tmp_path / "trian.csv")})
    with pytest.raises(NotFoundError):
        kvs.experiment("one")
    assert Experiment("one", locators=table(tmp_path)).locators == kvs.experiment("one").locators


def test_locators_that_never_worked_can_be_replaced(kvs: KvsClient, tmp_path: Path) -> None:
    """After a failed ETL run the record gets new locators, and the log names the user."""
    Experiment("one", locators=table(tmp_path))
    after_etl(kvs, "failed")
    moved = table(tmp_path, "moved.csv")
    experiment = Experiment("one", locators=moved)
    assert experiment.locators.train is not None
    assert experiment.locators.train.metadata == moved["train"]
    assert Experiment.attach("one").locators == experiment.locators
    assert experiment.state().commands[-1].what == "gave the experiment other dataset locators"
    with pytest.raises(LocatorError, match=r"gone\.csv does not exist"):
        Experiment("one", locators={"train": str(tmp_path / "gone.csv")})


class Training(SubEpochSpec):
    """A spec with all required methods."""

    def create_models(self, hyperparams: object) -> list[object]:
        return []

    def train(
        self, models: object, checkpoint: object, dataloader: object, hyperparams: object
    ) -> dict[str, float]:
        return {}


class Scored(Training):
    """A spec whose source has the metric names as literals."""

    def train(
        self, models: object, checkpoint: object, dataloader: object, hyperparams: object
    ) -> dict[str, float]:
        return {"loss": 1.0, "accuracy": 0.5}


class Pictures(ETLSpec):
    """An ETL spec with an unknown column."""

    is_feature_download = ["picture"]  # noqa: RUF012 - as users write it

    def row_preprocessor(self, row: object, mode: str, object_dir: str) -> tuple[object, object]:
        return 1, 1


def test_an_impossible_run_is_not_requested(kvs: KvsClient, tmp_path: Path) -> None:
    """A fit without data, a test without a fit, an unknown column: the call raises and the queue stays empty."""
    experiment = Experiment("one", locators=table(tmp_path))
    with pytest.raises(DataError, match="'one' has no preprocessed data: call run_etl first"):
        experiment.run_fit(Training(), {"batch_size": 1}, metric="loss", mode="min")
    with pytest.raises(NotFoundError, match="no fit run yet"):
        experiment.run_test()
    with pytest.raises(
        SpecError, match=r"names the column 'picture', but the metadata of 'train' has only id, image"
    ):
        experiment.run_etl(Pictures())
    assert kvs.events("one") == ()
    assert kvs.queue() == ()


def test_a_metric_that_the_spec_does_not_return_is_not_requested(kvs: KvsClient, tmp_path: Path) -> None:
    """Literal metric names in the source are checked before training."""
    experiment = Experiment("one", locators=table(tmp_path))
    with pytest.raises(
        MetricError,
        match=r"'acuracy' is not returned by Scored\.train\(\), which returns: accuracy, loss\. Choose one",
    ):
        experiment.run_fit(Scored(), {"batch_size": 1}, metric="acuracy", mode="max")
    with pytest.raises(DataError, match="no preprocessed data"):
        experiment.run_fit(Scored(), {"batch_size": 1}, metric="accuracy", mode="max")
    match = r"'los' is not returned by Scored\.train\(\), .*: accuracy, loss\. Choose one of them in Above\('los', 20\)"
    with pytest.raises(MetricError, match=match):
        experiment.run_fit(
            Scored(), {"batch_size": 1}, metric="loss", mode="min", search=Search(stop=Above("los", 20))
        )
    with pytest.raises(DataError, match="no preprocessed data"):
        experiment.run_fit(
            Scored(), {"batch_size": 1}, metric="loss", mode="min", search=Search(stop=Above("loss", 20))
        )
    assert kvs.events("one") == ()
