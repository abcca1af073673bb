"""Preparation of ETL runs: equal arguments give the same data set without new files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from cerebro.contract.events import RunFinished, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.data.tables.table_files import TableFiles
from cerebro.errors import ConflictError, LocatorError, MetadataError, StorageFullError
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState
from controller.preparation import preparation
from controller.preparation.preparation import prepare_etl
from controller.preparation.sorted_metadata import SortedMetadata
from tests.state.stories import SHA, Story

WEIGHTS = {"worker-0": 1.0, "worker-1": 2.0}


class Bench:
    """Metadata files in a folder, and `prepare_etl` with default arguments."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(root / "volumes")})
        self.write("train", 31)
        self.write("test", 7)
        self.splits = ["train", "test"]
        self.metadata = {split: str(root / f"{split}.csv") for split in self.splits}
        self.name, self.archive = "one", None
        self.misc: tuple[str, ...] = ()

    def write(self, split: str, rows: int, *, first: int = 0, column: str = "id") -> None:
        lines = [f"{column},label", *(f"r{first + n},{n % 3}" for n in range(rows))]
        (self.root / f"{split}.csv").write_text("\n".join(lines) + "\n")

    def record(self) -> ExperimentRecord:
        located = {
            split: Locator(metadata=self.metadata[split], objects=str(self.root)) for split in self.splits
        }
        locators = Locators.model_validate({**located, "misc": self.misc})
        return ExperimentRecord(name=self.name, locators=locators, archive=self.archive)

    def prepare(
        self, weights: Mapping[str, float] = WEIGHTS, state: ExperimentState | None = None, **changes: Any
    ) -> EtlPlan:
        request = EtlRequest.model_validate({"code": SHA, "code_fingerprint": SHA, **changes})
        known = {name: dataset.plan for name, dataset in state.datasets.items()} if state else {}
        return prepare_etl(self.record(), known, request, weights, self.volumes)

    def rows(self, plan: EtlPlan, split: str) -> list[list[str]]:
        """Return the stored ids of each partition."""
        found = []
        for part in plan.splits[split]:
            with pa.OSFile(str(self.volumes.metadata(plan.dataset, split, part.partition))) as source:
                found.append(pa.ipc.open_file(source).read_all().column("id").to_pylist())
        return found

    def files(self) -> dict[Path, tuple[int, int]]:
        """Return all files with attributes that a rewrite would change."""
        return {
            path: (path.stat().st_mtime_ns, path.stat().st_ino)
            for path in (self.root / "volumes").rglob("*")
            if path.is_file()
        }


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_every_row_of_every_split_is_in_one_partition(bench: Bench) -> None:
    """Rows are shuffled and divided by worker weight; the plan has the counts."""
    plan = bench.prepare()
    parts = bench.rows(plan, "train")
    assert sorted(row for part in parts for row in part) == sorted(f"r{n}" for n in range(31))
    assert [len(part) for part in parts] == [part.rows for part in plan.splits["train"]] == [10, 21]
    assert [part.worker for part in plan.splits["train"]] == ["worker-0", "worker-1"]
    assert [row for part in parts for row in part] != [f"r{n}" for n in range(31)]
    assert sum(len(part) for part in bench.rows(plan, "test")) == 7


def test_the_same_arguments_give_the_same_data_set(bench: Bench) -> None:
    """A second call before ETL gives the same plan and files, without leftovers."""
    first = bench.prepare()
    rows = bench.rows(first, "train")
    second = bench.prepare()
    assert second == first
    assert bench.rows(second, "train") == rows
    assert not [path for path in bench.files() if path.name.startswith(".")]


def test_an_existing_data_set_is_not_rewritten(bench: Bench) -> None:
    """Its partitions stay in place, even with other workers."""
    first = bench.prepare()
    story = Story()
    story.append(
        RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)),
        RunStarted(run="etl-1", plan=first),
        RunFinished(run="etl-1", outcome="stopped"),
    )
    files = bench.files()
    assert bench.prepare({"worker-7": 1.0}, story.state) == first
    assert bench.files() == files


@pytest.mark.parametrize("change", ["metadata", "locators", "archive", "name"])
def test_other_data_or_code_give_another_data_set(bench: Bench, change: str) -> None:
    """A changed metadata file, another split, another code archive, or another experiment."""
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


def test_the_plan_tells_other_misc_files(bench: Bench) -> None:
    """A rewritten file gives another data set, and the plan says that it has other `misc` files."""
    without, words = bench.prepare(), bench.root / "words.txt"
    words.write_text("a")
    bench.misc = (str(words),)
    first, second = bench.prepare(), bench.prepare(seed=1)
    words.write_text("a b")
    third = bench.prepare()
    assert without.misc == ""
    assert first.misc == second.misc != third.misc
    assert len({plan.dataset for plan in (without, first, second, third)}) == 4


def test_a_fraction_selects_that_share_of_each_split(bench: Bench) -> None:
    """The number is rounded, and the seed selects the rows."""
    plan = bench.prepare(fraction=0.5)
    assert {split: sum(p.rows for p in parts) for split, parts in plan.splits.items()} == {
        "train": 16,
        "test": 4,
    }


def test_fewer_training_rows_than_workers_are_refused(bench: Bench) -> None:
    """The error has both numbers; other splits may be smaller."""
    bench.write("test", 1)
    weights = {f"worker-{n}": 1.0 for n in range(4)}
    plan = bench.prepare(weights)
    assert sorted(part.rows for part in plan.splits["test"]) == [0, 0, 0, 1]
    with pytest.raises(MetadataError, match=r"'train' has 3 rows \(of 31, fraction 0.1\) for 4 workers"):
        bench.prepare(weights, fraction=0.1)


def test_invalid_metadata_is_named(bench: Bench) -> None:
    """A missing file, no column `id`, or no rows: the error names the split or path, and no file is written."""
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


def _tables(root: Path, rows: int) -> dict[str, str]:
    """Write the same rows to files of several kinds and orders; return their locators."""
    for name in ("parts", "parquet", "shuffled"):
        (root / name).mkdir()
    table = pa.table({"id": range(rows), "label": [n % 3 for n in range(rows)], "word": ["w"] * rows})
    csv.write_csv(table, root / "one.csv")
    csv.write_csv(table, root / "one.tsv", csv.WriteOptions(delimiter="\t"))
    parquet.write_table(table, root / "one.parquet")
    for number, start in enumerate(range(0, rows, 10)):
        part = table.slice(start, 10)
        csv.write_csv(part, root / "parts" / f"part-{number}.csv")
        parquet.write_table(part, root / "parquet" / f"part-{number}.parquet")
        turned = part.take(list(reversed(range(part.num_rows)))).select(["word", "id", "label"])
        csv.write_csv(turned, root / "shuffled" / f"part-{9 - number}.csv")
    (root / "parts" / "_SUCCESS").touch()
    (root / "parts" / "part-9.csv").touch()
    texts = table.set_column(0, "id", table["id"].cast(pa.string()))
    parquet.write_table(texts, root / "texts.parquet")
    (root / "bom.csv").write_bytes(b"\xef\xbb\xbf" + (root / "one.csv").read_bytes().replace(b"\n", b"\r\n"))
    names = (
        "one.csv",
        "one.tsv",
        "one.parquet",
        "parts",
        "parts/part-*.csv",
        "parquet",
        "shuffled",
        "bom.csv",
    )
    return {name: f"{root}/{name}" for name in (*names, "texts.parquet")}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_same_rows_give_the_same_partitions_from_any_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    """One file or many, CSV or Parquet, any order, in memory or on disk."""
    if is_streamed:
        monkeypatch.setattr("cerebro.data.tables.text_stream.SAMPLE_BYTES", 100)
        monkeypatch.setattr("controller.preparation.bucket_sort.CHUNK_BYTES", 500)
    found = set()
    for metadata in _tables(tmp_path, 37).values():
        bench = Bench(tmp_path)
        bench.metadata = {"train": metadata, "test": metadata}
        plan = bench.prepare(fraction=0.8)
        parts = [*bench.rows(plan, "train"), *bench.rows(plan, "test")]
        found.add(tuple(tuple(map(int, part)) for part in parts))
    assert len(found) == 1
    assert sum(map(len, found.pop())) == 60


@pytest.mark.parametrize("broken", ["runs", "add"])
def test_a_failed_preparation_leaves_no_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Neither scratch files nor a partial data set remain; the next attempt succeeds."""

    def fail(*given: object) -> None:
        raise StorageFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(f"controller.preparation.bucket_sort.BucketSort.{broken}", fail)
        with pytest.raises(StorageFullError):
            bench.prepare()
    assert bench.files() == {}
    assert sum(len(part) for part in bench.rows(bench.prepare(), "train")) == 31


@pytest.mark.parametrize("when", ["digest", "cut", "put"])
def test_the_later_of_two_concurrent_preparations_wins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The earlier call replaces no files, wherever it is when the later call starts."""
    owner, name = {
        "digest": (TableFiles, "digest"),
        "cut": (SortedMetadata, "write"),
        "put": (preparation, "_put"),
    }[when]
    whole, later = getattr(owner, name), list[EtlPlan]()

    def overtaken(*given: Any) -> Any:
        if not later:
            monkeypatch.setattr(owner, name, whole)
            later.append(bench.prepare({"worker-0": 1.0, "worker-1": 1.0, "worker-2": 1.0}))
        return whole(*given)

    monkeypatch.setattr(owner, name, overtaken)
    with pytest.raises(ConflictError, match=r"another preparation of the data set .* run it again"):
        bench.prepare()
    for split in bench.splits:
        parts = bench.rows(later[0], split)
        assert [len(part) for part in parts] == [part.rows for part in later[0].splits[split]]
        assert len({row for part in parts for row in part}) == sum(map(len, parts))
    assert bench.prepare().dataset == later[0].dataset
    assert list(bench.volumes.scratch.iterdir()) == []


def test_tables_that_change_while_being_read_are_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their digest would not match the rows."""
    digest = TableFiles.digest

    def changed(files: TableFiles) -> str:
        found = digest(files)
        bench.write("train", 32)
        return found

    monkeypatch.setattr(TableFiles, "digest", changed)
    with pytest.raises(LocatorError, match=r"train\.csv was changed while it was read"):
        bench.prepare()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id,label\na,1\nb,2\na,3\nb,4\n", "the id 'a' more than once, and 'b' too|the id 'b'.*'a' too"),
        ("id,label\na,1\n,2\n", r"no 'id' in row 2 of .*train\.csv"),
        ("id,id\na,1\n", "the column 'id' more than once"),
        ("id\na\nb,1\n", r"train\.csv cannot be read as CSV.*Expected 1 columns, got 2"),
        ("", r"train\.csv cannot be read as CSV"),
    ],
)
def test_invalid_rows_are_named(bench: Bench, content: str, expected: str) -> None:
    """The error has the ids, the file and the row."""
    (bench.root / "train.csv").write_text(content)
    with pytest.raises(MetadataError, match=expected):
        bench.prepare()
