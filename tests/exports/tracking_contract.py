"""Tests of exports to a tracking server, shared by the real MLflow and the fake."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from cerebro.contract.events import Event, ModelResumed
from cerebro.contract.records import ExperimentRecord, Hyperparameters
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import ExportError
from cerebro.exports.export_loop import ExperimentExport
from cerebro.exports.mlflow_export import MlflowExport, _name
from cerebro.exports.mlflow_server import MlflowServer
from cerebro.exports.projection import PageKey, Projection
from tests.exports.logged import LogStore, expected, record, story
from tests.exports.reading import Shown, shown
from tests.state.stories import Story, sub_epoch


def export(
    address: str, of: ExperimentRecord, log: Sequence[Event], *, folder: Path | None = None, page: int = 7
) -> int:
    """Export the whole log and return the number of sent rows."""
    server = MlflowServer(address, {}, patience_s=30)
    checkpoint = (lambda reference: folder / "checkpoint.pt") if folder else None
    followed = ExperimentExport(
        LogStore(log, of, page), of, lambda projection: MlflowExport(server, projection, checkpoint)
    )
    followed.catch_up()
    return followed.sent


def exported_rows(address: str, of: ExperimentRecord, log: Sequence[Event]) -> dict[PageKey, Shown]:
    names = {_name(name) for rows in expected(log, of).values() for name, *_ in rows}
    return shown(address, Projection(of).identity, names)


def check_rows(address: str, of: ExperimentRecord, log: Sequence[Event]) -> dict[PageKey, Shown]:
    """Check that each row of the log exists exactly once, and no others do."""
    found = exported_rows(address, of, log)
    expected_rows = {
        page_key: sorted((_name(n), *rest) for n, *rest in rows)
        for page_key, rows in expected(log, of).items()
    }
    assert {page_key: sorted(run.rows) for page_key, run in found.items() if run.rows} == expected_rows
    return found


class TrackingContract:
    """The shared tests; a subclass provides `address`."""

    @pytest.fixture
    def of(self) -> ExperimentRecord:
        """An experiment that is new to the server."""
        return record(f"e{uuid.uuid4().hex[:12]}")

    def test_each_committed_value_is_exported_once(self, address: str, of: ExperimentRecord) -> None:
        """Exports may be repeated and may cover parts of the log."""
        log = story().log
        for length in (4, 15, 15, 30, len(log), len(log)):
            export(address, of, log[:length])
            check_rows(address, of, log[:length])
        assert export(address, of, log) == 0

    def test_a_model_is_a_child_run_of_its_fit(self, address: str, of: ExperimentRecord) -> None:
        """The run has the hyperparameters, status and author."""
        export(address, of, story().log)
        found = check_rows(address, of, story().log)
        fit = found[PageKey("fit-1")]
        assert {page_key.model: run.info["status"] for page_key, run in found.items()} == {
            "": "FINISHED", "m00": "FINISHED", "m01": "FAILED", "m02": "KILLED",
        }  # fmt: skip
        assert fit.params["metric"] == "loss"
        assert found[PageKey("fit-1", "m00")].params == {"batch_size": "1", "lr": "0.1"}
        for page_key, run in found.items():
            assert run.info["run_name"] == (
                f"fit-1/{page_key.model}" if page_key.model else f"{of.name}/fit-1"
            )
            if page_key.model:
                assert run.tags["mlflow.parentRunId"] == fit.info["run_id"]
        assert found[PageKey("fit-1", "m00")].tags["cerebro.best_epoch"] == "2"
        assert found[PageKey("fit-1", "m01")].tags["cerebro.failure"]
        assert int(fit.info["start_time"]) == 104_000

    def test_a_resumed_model_is_a_running_run_again(self, address: str, of: ExperimentRecord) -> None:
        run_story = story()
        export(address, of, run_story.log)
        run_story.append(ModelResumed(run="fit-1", model="m02", by="ada"))
        export(address, of, run_story.log)
        assert exported_rows(address, of, run_story.log)[PageKey("fit-1", "m02")].info["status"] == "RUNNING"
        run_story.train(1, 0, model="m02", loss=5.0)
        export(address, of, run_story.log)
        check_rows(address, of, run_story.log)

    def test_a_recreated_experiment_has_its_own_runs(self, address: str, of: ExperimentRecord) -> None:
        """The old experiment has the same name, runs and models."""
        log, later = story().log, of.model_copy(update={"created": 99.0})
        export(address, of, log)
        export(address, later, log[:20])
        check_rows(address, of, log)
        check_rows(address, later, log[:20])

    def test_names_and_values_of_any_kind_are_exported(self, address: str, of: ExperimentRecord) -> None:
        """Covers more values than one request holds, NaN and infinity, and names that MLflow refuses."""
        story = Story()
        odd = {"läss": 1.0, "a//b": 2.0, "..": 3.0, "x" * 300: 4.0, "a b-c.d/e": 5.0, "ess:1": 6.0}
        many = {f"metric-{number:04}": float(number) for number in range(1010)}
        given: Hyperparameters = {
            "batch_size": 1,
            "lr": 0.1,
            "text": "ü" * 9000,
            "none": None,
            "läyers": [1, 2],
        }
        story.fit(models=1, hyperparams={"m00": given | {f"p{n}": n for n in range(150)}})
        checkpoint = CheckpointRef(name="m00-u0-a1", checksum="-", size=1)
        story.do(
            sub_epoch(1, 0),
            0,
            TaskResult(rows=1, metrics={**odd, **many, "inf": math.inf}, checkpoint=checkpoint),
        )
        export(address, of, story.log)
        found = exported_rows(address, of, story.log)[PageKey("fit-1", "m00")]
        expected_rows = [
            row for row in expected(story.log, of)[PageKey("fit-1", "m00")] if not math.isinf(row[3])
        ]
        there = {row[0]: row for row in found.rows}
        assert len(there) == len(found.rows) == len(expected_rows) + 1
        assert all(there[_name(row[0])][1:] == row[1:] for row in expected_rows)
        assert len(found.params) == 155
        assert found.params["p149"] == "149"
        assert found.params["none"] == "null"
        assert export(address, of, story.log) == 0

    def test_a_run_deleted_in_the_tracker_stays_deleted(self, address: str, of: ExperimentRecord) -> None:
        log = story().log
        export(address, of, log[:20])
        run = exported_rows(address, of, log)[PageKey("fit-1", "m00")]
        MlflowServer(address, {}).post("runs/delete", run_id=run.info["run_id"])
        export(address, of, log)
        assert exported_rows(address, of, log).keys() - {PageKey("fit-1", "m00")} == {
            PageKey("fit-1"), PageKey("fit-1", "m01"), PageKey("fit-1", "m02"),
        }  # fmt: skip

    def test_checkpoints_are_sent_on_request(
        self, address: str, of: ExperimentRecord, tmp_path: Path
    ) -> None:
        """Models that have ended are sent once."""
        log = story().log
        (tmp_path / "checkpoint.pt").write_bytes(b"weights")
        export(address, of, log, folder=tmp_path)
        found = exported_rows(address, of, log)
        finished = found[PageKey("fit-1", "m00")]
        assert finished.tags["cerebro.checkpoint"]
        assert "cerebro.checkpoint" not in found[PageKey("fit-1", "m02")].tags  # untrained
        name = finished.tags["cerebro.checkpoint"].rsplit("/", 1)[-1]
        assert self.file(address, finished, f"checkpoint/{name}") == b"weights"
        (tmp_path / "checkpoint.pt").unlink()
        export(address, of, log, folder=tmp_path)  # does not read the file again

    def test_an_address_without_a_tracking_server_is_named(self, address: str, of: ExperimentRecord) -> None:
        with pytest.raises(ExportError, match="is no MLflow tracking server"):
            export(f"{address}/elsewhere", of, story().log)

    def file(self, address: str, run: Shown, name: str) -> bytes:
        """Return an artifact of a run."""
        raise NotImplementedError
