"""What runs return: objects and data frames that say what the state says, whatever users call their metrics."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go
import pytest
import torch

from cerebro import SubEpochSpec
from cerebro.client import results
from cerebro.client.files import MountedFiles
from cerebro.client.reporting.plotting import plotly_script
from cerebro.client.results import EtlResult, FitResult
from cerebro.client.results.model import TrainedModel
from cerebro.client.results.shown import Carriers, bundle
from cerebro.contract.events import RunFinished, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks import FailureKind, TaskResult
from cerebro.data.tables import write_columns
from cerebro.errors import NotFoundError, RunFailedError
from cerebro.runtime.volumes import Volumes
from cerebro.scheduling.validator import validate
from cerebro.state import Run, TaskKey
from cerebro.state.experiment import fold
from cerebro.usercode import archive
from cerebro.usercode.encoding import encode
from cerebro.usercode.in_process import UserCode
from cerebro.worker.training.checkpoint import save
from tests.client.reporting.stories import reported
from tests.state.runs import dispatched
from tests.state.stories import DATASET, Story, unit


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})


def fit_result(story: Story, volumes: Volumes) -> FitResult:
    return FitResult(story.state, story.run, MountedFiles(volumes))


def fitted(*, mode: Literal["min", "max"] = "min", validated: bool = False) -> Story:
    """Three models: one good, one bad, one that failed in its second epoch."""
    story = Story()
    story.etl()
    story.fit(models=4, mode=mode, validated=validated)
    for model, losses in (("m00", (5.0, 4.0)), ("m01", (1.0, 2.0))):
        for epoch, loss in enumerate(losses, start=1):
            story.epoch(epoch, model=model, loss=loss)
            if validated:
                story.validate(epoch, model=model, loss=loss * 10)
    story.epoch(1, model="m02", loss=3.0)
    if validated:
        story.validate(1, model="m02", loss=30.0)
    story.fail(unit(2, 0, "m02"), 0, FailureKind.USER_ERROR, "ValueError: boom")
    return story


@pytest.mark.parametrize(
    ("mode", "order", "values"),
    [
        ("min", ["m01", "m02", "m00", "m03"], [1.0, 3.0, 4.0]),
        ("max", ["m00", "m02", "m01", "m03"], [5.0, 3.0, 2.0]),
    ],
)
def test_the_leaderboard_is_sorted_in_the_metrics_direction(
    volumes: Volumes, mode: Literal["min", "max"], order: list[str], values: list[float]
) -> None:
    """Best first, each model at its best epoch; models without a value come last; rank counts from 1."""
    board = fit_result(fitted(mode=mode), volumes).leaderboard()
    assert list(board["model"]) == order
    assert list(board["loss"])[:3] == values
    assert pd.isna(board["loss"].iloc[3])
    assert list(board.index) == [1, 2, 3, 4]
    assert board.index.name == "rank"
    assert board.set_index("model").loc["m02", "failure"] == "ValueError: boom"
    assert list(board["state"]) == [
        "failed" if m == "m02" else "queued" if m == "m03" else "finished" for m in order
    ]


def test_the_leaderboard_says_what_the_page_says(volumes: Volumes) -> None:
    """A model that was left when a user stopped the run is stopped."""
    story = fitted()
    story.tell(RunFinished(run="fit-1", outcome="stopped"))
    board = fit_result(story, volumes).leaderboard().set_index("model")
    assert board.loc["m03", "state"] == "stopped"


def test_the_leaderboard_shows_hyper_parameters(volumes: Volumes) -> None:
    """A column each; lists and dicts as text."""
    story = Story()
    story.fit(hyperparams={"m00": {"batch_size": 8, "layers": [4, 2]}, "m01": {"batch_size": 16}})
    board = fit_result(story, volumes).leaderboard().set_index("model")
    assert board.loc["m00", "layers"] == "[4, 2]"
    assert list(board["batch_size"]) == [8, 16]


def test_names_that_users_choose_hide_nothing(volumes: Volumes) -> None:
    """A hyper-parameter called `model` or like the metric, a metric called `seconds`: both columns are there."""
    story = Story()
    story.fit(models=1, hyperparams={"m00": {"batch_size": 8, "model": "cnn", "loss": "mse", "epochs": 99}})
    story.epoch(1, loss=2.0, seconds=7.0, attempt=3.0)
    result = fit_result(story, volumes)
    (row,) = result.leaderboard().to_dict("records")
    assert (row["model"], row["model (hyper-parameter)"]) == ("m00", "cnn")
    assert (row["loss"], row["loss (hyper-parameter)"]) == (2.0, "mse")
    assert (row["epochs"], row["epochs (hyper-parameter)"]) == (1, 99)
    (epoch,) = result.history().to_dict("records")
    assert (epoch["seconds"], epoch["seconds (metric)"]) == (4.0, 7.0)
    assert list(result.visits()["attempt"]) == [1, 1]
    assert list(result.visits()["attempt (metric)"]) == [3.0, 3.0]


def test_a_run_that_has_not_started_has_empty_tables(volumes: Volumes) -> None:
    """With their columns, so that a notebook that attaches early does not fail."""
    story = Story()
    story.fit()
    story.run.models.clear()
    result = fit_result(story, volumes)
    assert list(result.leaderboard().columns) == ["model", "state", "loss", "best_epoch", "epochs", "failure"]
    assert len(result.leaderboard()) == len(result.history()) == len(result.visits()) == 0
    assert list(result.epochs().columns) == ["makespan", "lower_bound", "gap", "process_start", "idle"]
    assert result.failures() == {}
    with pytest.raises(RunFailedError, match="no model finished an epoch"):
        _ = result.best


@pytest.mark.parametrize("validated", [False, True])
def test_the_best_model_is_told_with_its_checkpoint(volumes: Volumes, validated: bool) -> None:
    """Id, hyper-parameters, epoch, value and the file: of validation where there is one."""
    best = fit_result(fitted(validated=validated), volumes).best
    assert (best.id, best.epoch, best.metric, best.value) == ("m01", 1, "loss", 10.0 if validated else 1.0)
    assert best.hyperparams == {"batch_size": 1, "lr": 0.2}
    assert best.checkpoint.name == "m01-u1-a1"
    assert best.path == volumes.checkpoints / "m01-u1-a1"


def test_the_best_model_can_be_loaded(volumes: Volumes) -> None:
    """Its bytes are checked and its tensors are on the CPU."""
    story = Story()
    story.fit(models=1, partitions=1, epochs=1)
    weights = torch.arange(3.0)
    volumes.model_checkpoints("one", "fit-1", "m00").mkdir(parents=True)
    reference = save(
        volumes.checkpoints, "one/fit-1/m00/u0.pt", {"models": [{"w": weights}], "checkpoint": {"n": 1}}
    )
    story.do(unit(1, 0), 0, TaskResult(rows=1, metrics={"loss": 1.0}, checkpoint=reference))
    state = fit_result(story, volumes).best.load()
    assert torch.equal(state["models"][0]["w"], weights)
    assert state["checkpoint"] == {"n": 1}


class Network(SubEpochSpec):
    """One layer, as wide as a file says, which `initialize_worker` reads."""

    def initialize_worker(self) -> None:
        self.width = int((Path(self.misc_dir) / "width.txt").read_text())

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        import layers_of_mine  # type: ignore[import-not-found]  # of the code archive

        return [layers_of_mine.layer(self.width)]


def test_any_model_can_be_built_by_its_spec(volumes: Volumes, tmp_path: Path) -> None:
    """With the trained weights, in evaluation mode, its archive and files at hand; nothing of the process changes."""
    (tmp_path / "width.txt").write_text("3")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/layers_of_mine.py").write_text(
        "import torch\n\ndef layer(width):\n    return torch.nn.Linear(width, 1)\n"
    )
    record = ExperimentRecord(
        name="one",
        locators=Locators(train=Locator(metadata="m.csv"), misc=(str(tmp_path / "width.txt"),)),
        archive="a" * 64,
    )
    story = Story()
    story.fit(models=2, partitions=1, epochs=2)
    trained = torch.nn.Linear(3, 1)
    volumes.model_checkpoints("one", "fit-1", "m01").mkdir(parents=True)
    state = {"models": [trained.state_dict()], "checkpoint": {}}
    reference = save(volumes.checkpoints, "one/fit-1/m01/u0.pt", state)
    story.do(unit(1, 0, "m01"), 0, TaskResult(rows=1, metrics={"accuracy": 1.0}, checkpoint=reference))
    packed = archive.pack(tmp_path / "code")
    code = UserCode(record=record, archive=lambda sha: packed, folder=tmp_path / "cache")
    result = FitResult(
        story.state, story.run, MountedFiles(volumes), record, lambda sha: encode(Network()), user_code=code
    )
    drawn, path = torch.get_rng_state(), list(sys.path)
    model = result.model("m01")
    assert (model.epoch, model.value) == (1, None)
    (network,) = model.modules()
    assert torch.equal(network.weight, trained.weight)
    assert not network.training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert sys.path == path
    with pytest.raises(NotFoundError, match="m00 of fit-1 has no checkpoint: it has not trained a unit"):
        result.model("m00")
    with pytest.raises(NotFoundError, match="completed 1 epochs, so there is no checkpoint of epoch 2"):
        result.model("m01", epoch=2)
    with pytest.raises(NotFoundError, match="no model 'm7'; there is"):
        result.model("m7")


class Named(SubEpochSpec):
    """Its module is in files of the code archive whose names other archives use too."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        import net_of_archive  # type: ignore[import-not-found]
        from parts_of_archive import layers  # type: ignore[import-not-found]

        assert net_of_archive.WIDTH == layers.WIDTH
        return [torch.nn.Linear(net_of_archive.WIDTH, 1)]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        """Never called."""

    test = train


def _files(folder: Path, width: int) -> Path:
    (folder / "parts_of_archive").mkdir(parents=True)
    for name in ("net_of_archive", "parts_of_archive/layers"):
        (folder / f"{name}.py").write_text(f"WIDTH = {width}\n")
    return folder


def _known(volumes: Volumes, folder: Path, number: int) -> TrainedModel:
    """A model of an experiment whose archive has a module of this width."""
    packed = archive.pack(_files(folder / f"code-{number}", number))
    state = {"models": [torch.nn.Linear(number, 1).state_dict()], "checkpoint": {}}
    locators = Locators(train=Locator(metadata="m.csv"))
    record = ExperimentRecord(name=f"e{number}", locators=locators, archive=f"{number}" * 64)
    volumes.model_checkpoints(record.name, "fit-1", "m00").mkdir(parents=True)
    return TrainedModel(
        id="m00",
        hyperparams={"batch_size": 1},
        metric="loss",
        epoch=1,
        value=None,
        checkpoint=save(volumes.checkpoints, f"{record.name}/fit-1/m00/u0.pt", state),
        files=MountedFiles(volumes),
        code=UserCode(record=record, archive=lambda sha: packed, folder=folder / "cache"),
        encoded=lambda: encode(Named()).encoded,
    )


@pytest.mark.parametrize("is_imported", [True, False])
def test_each_archive_has_its_own_modules(
    volumes: Volumes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_imported: bool
) -> None:
    """Though two of them and the user's folder have files of one name; the user's stay what they are."""
    monkeypatch.syspath_prepend(_files(tmp_path / "local", 9))
    if is_imported:
        importlib.import_module("net_of_archive")
        importlib.import_module("parts_of_archive.layers")
    before = {name: module for name, module in sys.modules.items() if "_of_archive" in name}
    one, two = (_known(volumes, tmp_path, number) for number in (2, 3))
    widths = [model.modules()[0].in_features for model in (one, two, one)]
    after = {name: module for name, module in sys.modules.items() if "_of_archive" in name}
    for name in after:
        monkeypatch.delitem(sys.modules, name)
    assert widths == [2, 3, 2]
    assert after == before


def test_the_history_has_a_row_per_model_epoch_and_split(volumes: Volumes) -> None:
    """Training means with their seconds, and validations."""
    history = fit_result(fitted(validated=True), volumes).history()
    rows = history[history["model"] == "m01"].to_dict("records")
    assert [(row["epoch"], row["split"], row["loss"]) for row in rows] == [
        (1, "train", 1.0),
        (1, "valid", 10.0),
        (2, "train", 2.0),
        (2, "valid", 20.0),
    ]
    assert rows[0]["seconds"] == 4.0
    assert pd.isna(rows[1]["seconds"])
    assert set(history["model"]) == {"m00", "m01", "m02"}


def test_the_visits_are_the_log_of_units(volumes: Volumes) -> None:
    """In the order in which they ended: enough to replay the run."""
    story = Story()
    story.fit()
    story.fail(unit(1, 1), 1, FailureKind.CRASH)
    story.train(1, 1, loss=1.0)
    story.train(1, 0, model="m01", loss=2.0)
    story.train(1, 0, loss=3.0)
    visits = fit_result(story, volumes).visits()
    assert list(
        visits[["model", "unit", "epoch", "partition", "attempt"]].itertuples(index=False, name=None)
    ) == [
        ("m00", 0, 1, 1, 2),
        ("m01", 0, 1, 0, 1),
        ("m00", 1, 1, 0, 1),
    ]
    assert visits["ended"].is_monotonic_increasing
    assert (visits["ended"] > visits["started"]).all()


def test_the_epochs_tell_how_well_they_were_scheduled(volumes: Volumes) -> None:
    """Makespan, lower bound and gap, and how long workers were idle."""
    story = dispatched(Random(2), models=3, partitions=2, epochs=2)
    epochs = fit_result(story, volumes).epochs()
    assert list(epochs.index) == [1, 2]
    assert list(epochs["makespan"]) == [report.makespan_s for report in story.run.epochs]
    assert epochs["gap"].to_list() == pytest.approx(
        (epochs["makespan"] / epochs["lower_bound"] - 1).to_list()
    )
    assert epochs["idle"].to_list() == pytest.approx(
        (epochs["idle worker-0"] + epochs["idle worker-1"]).to_list()
    )


def test_the_log_is_enough_to_judge_the_schedule(volumes: Volumes) -> None:
    """The validator finds no violation, and the bound that the last epoch's report names."""
    story = dispatched(Random(2), models=3, partitions=2, epochs=2)
    state = fold("one", story.log)
    result = FitResult(state, state.runs["fit-1"], MountedFiles(volumes))
    report = validate(*result.schedule(), actual=True).check()
    assert report.lower_bound == pytest.approx(result.epochs()["lower_bound"].iloc[-1])


PLOTS = ("plot_curves", "plot_parallel", "plot_scatter", "plot_heatmap", "plot_importance", "plot_schedule")


@pytest.mark.parametrize("plot", PLOTS)
def test_a_figure_is_an_object_of_plotly_and_a_file(plot: str, volumes: Volumes, tmp_path: Path) -> None:
    """The file shows it without a network."""
    result = fit_result(reported(), volumes)
    path = tmp_path / "plots" / f"{plot}.html"
    drawn = getattr(result, plot)(path=path)
    assert isinstance(drawn, go.Figure)
    assert len(drawn.data) > 0
    written = path.read_text(encoding="utf-8")
    assert plotly_script() in written
    assert not re.findall(r'<script[^>]*src="', written)


def test_a_figure_takes_what_a_reader_wants_to_see(volumes: Volumes) -> None:
    """Metric, axis, scale, smoothing; hyper-parameters; a model."""
    result = fit_result(reported(), volumes)
    curves = result.plot_curves(axis="row", log=True, smoothing=0.5, split="train")
    assert (curves.layout.yaxis.type, curves.layout.xaxis.title.text) == ("log", "rows trained")
    assert "training" in curves.layout.title.text
    assert result.plot_curves(metric="nothing").data == ()
    assert len(result.plot_scatter(names=["lr"], epoch=2, margin=1).data[0].y) == 20
    assert len(result.plot_scatter(names=["lr"], epoch=2).data[0].y) == 19
    assert result.plot_heatmap("lr", "width").layout.xaxis.title.text == "lr"
    committed = result.plot_schedule(model="m03", theme="dark").data[1]
    assert {1.0, 0.2} == set(committed.marker.opacity)


def test_what_cannot_be_drawn_is_said(volumes: Volumes) -> None:
    """With what to do instead."""
    result = fit_result(fitted(), volumes)
    with pytest.raises(ValueError, match=r"ends in \.html"):
        result.plot_curves("curves.png")
    with pytest.raises(NotFoundError, match="no hyper-parameter width: there are batch_size, lr"):
        result.plot_parallel(names=["width"])
    with pytest.raises(NotFoundError, match="fewer than two hyper-parameters of fit-1 vary"):
        result.plot_heatmap()


def test_the_report_is_a_file(volumes: Volumes, tmp_path: Path) -> None:
    """In a folder that is made for it."""
    result = fit_result(fitted(), volumes)
    assert result.report(tmp_path / "out" / "report.html") == tmp_path / "out" / "report.html"
    assert "Best model: m01" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"ends in \.html"):
        result.report(tmp_path / "report.pdf")


def test_a_notebook_keeps_a_figure_as_html_as_well(volumes: Volumes) -> None:
    """It is drawn by the script that another output may carry, and says in words what it shows."""
    kept = bundle(fit_result(fitted(), volumes).plot_curves())
    assert kept["text/plain"].startswith("Learning curves of loss")
    assert kept["application/vnd.plotly.v1+json"]["data"]
    assert plotly_script() not in kept["text/html"]
    (element,) = re.findall(r'<div id="(figure-[0-9a-f]+)"', kept["text/html"])
    assert f'getElementById("{element}")' in kept["text/html"]


def test_one_cell_of_a_notebook_carries_the_script() -> None:
    """The first one that shows a figure, however often it is executed."""
    carriers = Carriers()
    assert [carriers.carries(cell) for cell in ("a", "b", "a", "b")] == [True, False, True, False]


def test_failures_carry_their_traceback(volumes: Volumes) -> None:
    """Of the models that were given up, and of no other."""
    assert fit_result(fitted(), volumes).failures() == {"m02": "ValueError: boom\nTraceback"}


def test_only_a_fit_has_a_fit_result(volumes: Volumes) -> None:
    """Another run is named."""
    story = Story()
    story.etl()
    with pytest.raises(RunFailedError, match="etl-1 is no fit run"):
        FitResult(story.state, story.state.runs["etl-1"], MountedFiles(volumes))


def test_a_notebook_shows_the_leaderboard(volumes: Volumes) -> None:
    """As a table, and a line of text elsewhere."""
    result = fit_result(fitted(), volumes)
    assert "<table" in result._repr_html_()
    assert repr(result) == "<FitResult one/fit-1: 4 models, running>"


# --- ETL, test, predict ------------------------------------------------------------------------------


def test_rows_in_are_rows_kept_plus_rows_failed(volumes: Volumes) -> None:
    """Per split; always."""
    story = Story()
    story.etl(splits={"train": 10, "test": 3})
    dataset = story.state.datasets[DATASET]
    dataset.rows["train", 1], dataset.failed_rows["train", 1] = 8, 2
    result = EtlResult.of(dataset, story.state.runs["etl-1"], MountedFiles(volumes))
    assert result.rows == {"train": 20, "test": 6}
    assert result.kept == {"train": 18, "test": 6}
    assert result.failed == {"train": 2, "test": 0}
    assert result.seconds > 0
    assert all(result.rows[s] == result.kept[s] + result.failed[s] for s in result.rows)
    drawn = result.plot_rows()
    assert [trace.name for trace in drawn.data] == ["preprocessed", "failed"]
    assert list(drawn.layout.yaxis.ticktext) == ["train", "test"]


def evaluation(kind: Literal["test", "predict"], models: dict[str, int]) -> tuple[Story, Run]:
    story = Story()
    story.tell(
        RunRequested(run="e-1", request=EvaluateRequest(kind=kind, fit="fit-1", split="test")),
        RunStarted(
            run="e-1",
            plan=EvaluatePlan(
                kind=kind, dataset=DATASET, fit="fit-1", models=models, partitions={0: 30, 1: 10}
            ),
        ),
    )
    return story, story.state.runs["e-1"]


def test_a_test_in_parts_is_the_mean_over_them_weighted_by_rows_and_says_so() -> None:
    """One row per model; a metric that a part lacks is left out. Runs of older versions are like this."""
    story, run = evaluation("test", {"m00": 2, "m01": 1})
    for model in ("m00", "m01"):
        for partition, (rows, accuracy) in enumerate(((30, 1.0), (10, 0.6))):
            extra = {"aux": 1.0} if partition else {}
            story.do(
                TaskKey(run="e-1", kind="test", model=model, partition=partition),
                partition,
                TaskResult(rows=rows, metrics={"accuracy": accuracy, "rows": 5.0, **extra}),
            )
    table = results.test_table(run)
    assert list(table.index) == ["m00", "m01"]
    assert list(table.columns) == ["epoch", "rows", "parts", "accuracy", "rows (metric)"]
    assert list(table["parts"]) == [2, 2]
    assert table.loc["m00", "accuracy"] == pytest.approx(0.9)
    assert (table.loc["m00", "rows"], table.loc["m00", "epoch"]) == (40, 2)


def test_a_test_without_rows_has_no_mean() -> None:
    """Every row of the split failed in ETL: not a number, rather than a division by zero."""
    story, run = evaluation("test", {"m00": 2, "m01": 1})
    key = TaskKey(run="e-1", kind="test", model="m00", partition=0)
    story.do(key, 0, TaskResult(rows=0, metrics={"accuracy": 0.0}))
    table = results.test_table(run)
    assert list(table["rows"]) == [0, 0]
    assert table["accuracy"].isna().all()


@pytest.mark.parametrize("models", [{"m00": 1}, {"m00": 1, "m01": 1}])
@pytest.mark.parametrize("is_written", [True, False])
def test_predictions_of_no_rows_are_an_empty_table(
    volumes: Volumes, models: dict[str, int], is_written: bool
) -> None:
    """Keyed as any other, whether or not a task wrote an empty output."""
    story, run = evaluation("predict", models)
    if is_written:
        volumes.shared.mkdir(parents=True, exist_ok=True)
        write_columns(volumes.shared / "none.arrow", {"id": [], "prediction": []})
        key = TaskKey(run="e-1", kind="predict", model="m00", partition=0)
        story.do(key, 0, TaskResult(rows=0, output="none.arrow"))
    table = results.prediction_table(run, MountedFiles(volumes))
    assert (len(table), list(table.index.names)) == (0, ["id"] if len(models) == 1 else ["model", "id"])
    assert list(table.columns) == (["prediction"] if is_written else [])


def test_predictions_are_one_table_keyed_by_row_id(volumes: Volumes) -> None:
    """Of all partitions, sorted; with several models keyed by model and id."""
    for models in ({"m00": 1}, {"m00": 1, "m01": 1}):
        story, run = evaluation("predict", models)
        for model in models:
            for partition, ids in enumerate((["c", "a"], ["b"])):
                output = f"{len(models)}-{model}-{partition}.arrow"
                volumes.shared.mkdir(parents=True, exist_ok=True)
                columns = {"id": ids, "prediction": [f"{model}{i}" for i in ids]}
                write_columns(volumes.shared / output, columns)
                story.do(
                    TaskKey(run="e-1", kind="predict", model=model, partition=partition),
                    partition,
                    TaskResult(rows=len(ids), output=output),
                )
        table = results.prediction_table(run, MountedFiles(volumes))
        if len(models) == 1:
            assert list(table.index) == ["a", "b", "c"]
            assert list(table["prediction"]) == ["m00a", "m00b", "m00c"]
        else:
            assert list(table.index) == [(m, i) for m in ("m00", "m01") for i in "abc"]
            assert table.loc[("m01", "b"), "prediction"] == "m01b"
