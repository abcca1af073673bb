"""Training rows by class and group: even shares, whole groups, and one clear error for unsuitable columns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.runs import EtlPlan, EtlRequest
from cerebro.data.objects.folder import FolderStore
from cerebro.data.tables.table_files import TableFile
from cerebro.data.tables.table_stream import Rows
from cerebro.errors import MetadataError
from controller.preparation.row_places import UNUSED, pattern, row_places
from tests.controller.test_preparation import Bench

COLUMNS = pa.schema([("label", pa.string()), ("patient", pa.int64())])
rows_by_group = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), min_size=1, max_size=80)


def places_of(
    rows: list[tuple[str, int]], weights: list[float], fraction: float = 1.0, **columns: str
) -> tuple[list[int], list[int]]:
    """Return the planned number of rows of each partition, and the partition of each row, in two batches."""
    found = row_places(
        "t.csv", COLUMNS, stratify=columns.get("stratify", ""), group=columns.get("group", ""), seed=0
    )
    assert found is not None
    cut = len(rows) // 3
    for first, part in ((0, rows[:cut]), (cut, rows[cut:])):
        found.observe(
            Rows(file=TableFile(store=FolderStore("/"), name="t.csv"), first=first + 1, batch=batch(part))
        )
    counts = found.plan(weights, fraction)
    return counts, [
        place for part in (rows[:cut], rows[cut:]) for place in found.places(batch(part)).tolist()
    ]


def batch(rows: list[tuple[str, int]]) -> pa.RecordBatch:
    labels, patients = [label for label, _ in rows], [patient for _, patient in rows]
    return pa.RecordBatch.from_arrays(
        [pa.array(labels, pa.string()), pa.array(patients, pa.int64())], schema=COLUMNS
    )


@given(rows=rows_by_group, workers=st.integers(1, 6), fraction=st.sampled_from((0.3, 1.0)))
def test_classes_are_spread_evenly(rows: list[tuple[str, int]], workers: int, fraction: float) -> None:
    """Over equal workers, numbers of rows of a class differ by at most one, and so do all rows."""
    counts, places = places_of(rows, [1.0] * workers, fraction, stratify="label")
    assert [Counter(places)[place] for place in range(workers)] == counts
    assert sum(counts) == max(1, round(len(rows) * fraction))
    assert max(counts) - min(counts) <= 1
    for label in {label for label, _ in rows}:
        found = Counter(place for place, row in zip(places, rows, strict=True) if row[0] == label)
        of_class = [found[place] for place in range(workers)]
        assert max(of_class) - min(of_class) <= 1


@given(
    rows=rows_by_group,
    weights=st.lists(st.sampled_from((1.0, 2.0, 0.5)), min_size=1, max_size=4),
    fraction=st.sampled_from((0.5, 1.0)),
    stratify=st.sampled_from(("", "label")),
)
def test_a_group_is_in_one_partition(
    rows: list[tuple[str, int]], weights: list[float], fraction: float, stratify: str
) -> None:
    """With and without classes; each partition has a group, or the error says that there are too few."""
    groups = {patient for _, patient in rows}
    if len(groups) < len(weights):
        with pytest.raises(MetadataError, match="each worker needs at least one"):
            places_of(rows, weights, fraction, group="patient", stratify=stratify)
        return
    counts, places = places_of(rows, weights, fraction, group="patient", stratify=stratify)
    assert [Counter(places)[place] for place in range(len(weights))] == counts
    assert min(counts) > 0
    found = {(row[1], place) for row, place in zip(rows, places, strict=True)}
    assert len(found) == len(groups)
    assert fraction < 1 or UNUSED not in places


def test_groups_of_equal_size_are_spread_evenly_by_class() -> None:
    """Twelve patients with two rows each, four of whom are ill, over four workers."""
    rows = [("a" if patient < 4 else "b", patient) for patient in range(12) for _ in range(2)]
    counts, places = places_of(rows, [1.0] * 4, group="patient", stratify="label")
    assert counts == [6, 6, 6, 6]
    ill = Counter(place for place, row in zip(places, rows, strict=True) if row[0] == "a")
    assert [ill[place] for place in range(4)] == [2, 2, 2, 2]


@given(weights=st.lists(st.sampled_from((1.0, 2.0, 3.0, 0.25)), min_size=1, max_size=8))
def test_a_pattern_follows_the_weights(weights: list[float]) -> None:
    """Up to the resolution of weights that are no integers."""
    found = Counter(pattern(weights).tolist())
    for place, weight in enumerate(weights):
        assert found[place] / found.total() == pytest.approx(weight / sum(weights), abs=1 / 900)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def write(bench: Bench, *patients: Any) -> None:
    lines = ["id,label,patient", *(f"r{n},{n % 3},{patient}" for n, patient in enumerate(patients))]
    (bench.root / "train.csv").write_text("\n".join(lines) + "\n")


def rows(bench: Bench, plan: EtlPlan, column: str) -> list[list[Any]]:
    """Return a column of each training partition."""
    found = []
    for part in plan.splits["train"]:
        with pa.OSFile(str(bench.volumes.metadata(plan.dataset, "train", part.partition))) as source:
            found.append(pa.ipc.open_file(source).read_all().column(column).to_pylist())
    return found


def test_a_data_set_is_cut_by_its_columns(bench: Bench) -> None:
    """The plan's numbers equal the files'; other columns make another data set."""
    write(bench, *(n // 3 for n in range(30)))
    weights = {"worker-0": 1.0, "worker-1": 1.0}
    plain = bench.prepare(weights)
    stratified = bench.prepare(weights, stratify="label")
    grouped = bench.prepare(weights, group="patient", stratify="label")
    assert len({plan.dataset for plan in (plain, stratified, grouped)}) == 3
    for plan in (stratified, grouped):
        labels = rows(bench, plan, "label")
        assert [len(part) for part in labels] == [part.rows for part in plan.splits["train"]] == [15, 15]
        assert [Counter(part) for part in labels] == [{0: 5, 1: 5, 2: 5}] * 2
    one, other = rows(bench, grouped, "patient")
    assert set(one).isdisjoint(other)
    ids = rows(bench, stratified, "id")
    assert sorted(each for part in ids for each in part) == sorted(f"r{n}" for n in range(30))
    assert bench.prepare(weights, stratify="label") == stratified


@pytest.mark.parametrize(
    ("patients", "columns", "message"),
    [
        (
            (1, "", 2),
            {"group": "patient"},
            r"has no 'patient' in row 2 of .*train.csv: give each row a group",
        ),
        ((1, 1, 1), {"group": "patient"}, "has 1 groups in .* for 2 workers"),
        ((1, 2, 3), {"group": "clinic"}, "no such column: choose one of id, label, patient"),
        ((1, 2, 3), {"stratify": "clinic"}, "no such column: choose one of id, label, patient"),
        (tuple(range(1500)), {"stratify": "patient"}, "more than 1,000 different values"),
    ],
)
def test_unsuitable_columns_are_refused(
    bench: Bench, patients: tuple[Any, ...], columns: dict[str, Any], message: str
) -> None:
    """Before any row is preprocessed."""
    write(bench, *patients)
    with pytest.raises(MetadataError, match=message):
        bench.prepare(**columns)


def test_a_request_without_columns_is_written_as_before() -> None:
    """Older versions read it."""
    request = EtlRequest(code="0" * 64, code_fingerprint="0" * 64)
    assert not {"stratify", "group"} & request.model_dump().keys()


@settings(max_examples=20)
@given(order=st.randoms(use_true_random=False))
def test_groups_do_not_depend_on_the_order_of_rows(order: Any) -> None:
    """So another file format or a sorted table gives the same data set."""
    given = [("abc"[n % 3], n // 4) for n in range(40)]
    shuffled = [*given]
    order.shuffle(shuffled)
    for stratify in ("", "label"):
        found = [
            dict(
                zip(
                    (row[1] for row in each),
                    places_of(each, [1.0, 1.0], group="patient", stratify=stratify)[1],
                    strict=True,
                )
            )
            for each in (given, shuffled)
        ]
        assert found[0] == found[1]


def floats(*values: float) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.float64())], names=["number"])


def test_a_row_without_a_number_as_its_group_is_refused() -> None:
    """A NaN in a table of numbers is a missing value."""
    found = row_places("t.csv", floats().schema, stratify="", group="number", seed=0)
    assert found is not None
    rows = Rows(
        file=TableFile(store=FolderStore("/"), name="t.csv"), first=1, batch=floats(1.0, float("nan"))
    )
    with pytest.raises(MetadataError, match=r"row 2 of /t\.csv: give each row a group"):
        found.observe(rows)


def test_rows_without_a_number_are_a_class() -> None:
    """All of them are the same class, in every batch."""
    found = row_places("t.csv", floats().schema, stratify="number", group="", seed=0)
    assert found is not None
    for part in (floats(1.0, float("nan")), floats(float("nan"), 1.0)):
        found.observe(Rows(file=TableFile(store=FolderStore("/"), name="t.csv"), first=1, batch=part))
    assert found.plan([1.0, 1.0], 1.0) == [2, 2]
    places = [found.places(floats(float("nan"), float("nan"))), found.places(floats(1.0, 1.0))]
    assert [sorted(each.tolist()) for each in places] == [[0, 1], [0, 1]]


def test_a_worker_without_rows_is_refused() -> None:
    """A pattern of very unequal workers leaves the small one without rows."""
    rows = [("a", number) for number in range(4)]
    with pytest.raises(MetadataError, match=r"leaves worker 0 without rows: 4 rows of t\.csv are too few"):
        places_of(rows, [1.0, 8.0], 1.0, stratify="label")


def test_a_pattern_of_large_weights_is_short() -> None:
    assert len(pattern([2_000_000_001, 3_000_000_000])) <= 1000
