"""Preparing an ETL run: the same arguments give the same data set and write nothing; other arguments another one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cerebro.contract.events import RunFinished, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.errors import LocatorError, MetadataError
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState
from controller.preparation import prepare_etl
from tests.state.stories import SHA, Story

WEIGHTS = {"worker-0": 1.0, "worker-1": 2.0}


class Bench:
    """Metadata files in a folder, and the call with all its defaults."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(root / "volumes")})
        self.write("train", 31)
        self.write("test", 7)
        self.splits = ["train", "test"]
        self.name, self.archive = "one", None

    def write(self, split: str, rows: int, *, first: int = 0, column: str = "id") -> None:
        lines = [f"{column},label", *(f"r{first + n},{n % 3}" for n in range(rows))]
        (self.root / f"{split}.csv").write_text("\n".join(lines) + "\n")

    def record(self) -> ExperimentRecord:
        located = {
            split: Locator(metadata=str(self.root / f"{split}.csv"), objects=str(self.root))
            for split in self.splits
        }
        return ExperimentRecord(
            name=self.name, locators=Locators.model_validate(located), archive=self.archive
        )

    def prepare(
        self, weights: Mapping[str, float] = WEIGHTS, state: ExperimentState | None = None, **changes: Any
    ) -> EtlPlan:
        request = EtlRequest.model_validate({"code": SHA, "code_fingerprint": SHA, **changes})
        known = {name: dataset.plan for name, dataset in state.datasets.items()} if state else {}
        return prepare_etl(self.record(), known, request, weights, self.volumes)

    def rows(self, plan: EtlPlan, split: str) -> list[list[str]]:
        """Ids per partition, as they were written."""
        found = []
        for part in plan.splits[split]:
            with pa.OSFile(str(self.volumes.metadata(plan.dataset, split, part.partition))) as source:
                found.append(pa.ipc.open_file(source).read_all().column("id").to_pylist())
        return found

    def files(self) -> dict[Path, tuple[int, int]]:
        """Every file, with what would change if it were written again."""
        return {
            path: (path.stat().st_mtime_ns, path.stat().st_ino)
            for path in (self.root / "volumes").rglob("*")
            if path.is_file()
        }


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_every_row_of_every_split_is_in_one_partition(bench: Bench) -> None:
    """Shuffled, and in proportion to the workers' weights; the plan says how many."""
    plan = bench.prepare()
    parts = bench.rows(plan, "train")
    assert sorted(row for part in parts for row in part) == sorted(f"r{n}" for n in range(31))
    assert [len(part) for part in parts] == [part.rows for part in plan.splits["train"]] == [10, 21]
    assert [part.worker for part in plan.splits["train"]] == ["worker-0", "worker-1"]
    assert [row for part in parts for row in part] != [f"r{n}" for n in range(31)]
    assert sum(len(part) for part in bench.rows(plan, "test")) == 7


def test_the_same_arguments_give_the_same_data_set(bench: Bench) -> None:
    """Asked again before anything was made of it: the same plan, the same files' content, no leftovers."""
    first = bench.prepare()
    rows = bench.rows(first, "train")
    second = bench.prepare()
    assert second == first
    assert bench.rows(second, "train") == rows
    assert not [path for path in bench.files() if path.name.startswith(".")]


def test_a_data_set_the_experiment_has_is_not_written_again(bench: Bench) -> None:
    """Its partitions stay where they are, even when the workers are others by now."""
    first = bench.prepare()
    story = Story()
    story.tell(
        RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)),
        RunStarted(run="etl-1", plan=first),
        RunFinished(run="etl-1", outcome="stopped"),
    )
    files = bench.files()
    assert bench.prepare({"worker-7": 1.0}, story.state) == first
    assert bench.files() == files


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"fraction": 0.5}, {"code_fingerprint": "1" * 64}],
    ids=["seed", "fraction", "code"],
)
def test_other_arguments_give_another_data_set(bench: Bench, changes: dict[str, Any]) -> None:
    """Under an id of its own, beside the first."""
    first, other = bench.prepare(), bench.prepare(**changes)
    assert other.dataset != first.dataset
    assert bench.rows(first, "train")


def test_what_does_not_change_the_rows_does_not_change_the_data_set(bench: Bench) -> None:
    """The same code encoded elsewhere, another author, another tolerance of failed rows."""
    first = bench.prepare()
    assert bench.prepare(code="2" * 64).dataset == first.dataset


@pytest.mark.parametrize("change", ["metadata", "locators", "archive", "name"])
def test_other_data_or_helpers_give_another_data_set(bench: Bench, change: str) -> None:
    """A metadata file that was edited in place, a split more, another archive, another experiment."""
    first = bench.prepare()
    if change == "metadata":
        bench.write("train", 31, first=1)
    elif change == "locators":
        bench.splits = ["train"]
    elif change == "archive":
        bench.archive = "3" * 64  # type: ignore[assignment]
    else:
        bench.name = "two"
    assert bench.prepare().dataset != first.dataset


def test_a_fraction_takes_that_share_of_each_split(bench: Bench) -> None:
    """Rounded; drawn by the seed."""
    plan = bench.prepare(fraction=0.5)
    assert {split: sum(p.rows for p in parts) for split, parts in plan.splits.items()} == {
        "train": 16,
        "test": 4,
    }


def test_fewer_training_rows_than_workers_are_refused(bench: Bench) -> None:
    """With both numbers; other splits may be smaller than that."""
    bench.write("test", 1)
    weights = {f"worker-{n}": 1.0 for n in range(4)}
    plan = bench.prepare(weights)
    assert sorted(part.rows for part in plan.splits["test"]) == [0, 0, 0, 1]
    with pytest.raises(MetadataError, match=r"'train' has 3 rows \(of 31, fraction 0.1\) for 4 workers"):
        bench.prepare(weights, fraction=0.1)


def test_metadata_that_cannot_be_used_is_named(bench: Bench) -> None:
    """Missing file, no column `id`, no rows: each with the split or the path, and nothing is written."""
    bench.write("test", 7, column="key")
    with pytest.raises(MetadataError, match=r"'test'.*no column 'id'"):
        bench.prepare()
    bench.write("test", 0)
    with pytest.raises(MetadataError, match=r"'test'.*no rows"):
        bench.prepare()
    (bench.root / "test.csv").unlink()
    with pytest.raises(LocatorError, match=r"test\.csv"):
        bench.prepare()
    assert bench.files() == {}


def test_other_columns_travel_with_their_rows(bench: Bench) -> None:
    """The row function sees the whole row."""
    plan = bench.prepare()
    path = bench.volumes.metadata(plan.dataset, "train", 0)
    with pa.OSFile(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.column_names == ["id", "label"]
    assert all(row["label"] == int(row["id"][1:]) % 3 for row in table.to_pylist())
