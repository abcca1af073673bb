"""Selections of rows equal a naive one over the whole table of values."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cerebro.client.results import rows_table
from cerebro.client.results import tables as tables_module
from cerebro.data.tables.whole_tables import write_columns
from cerebro.errors import DataError
from cerebro.figures.ranking.results import RankingRequest
from cerebro.figures.ranking.row_tables import compare_rows
from cerebro.figures.ranking.row_values import RowValues
from cerebro.figures.ranking.rows import ComparedRows, RowsRequest

Table = npt.NDArray[np.float64]

tables = st.tuples(st.integers(1, 30), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.integers(-3, 3).map(float))
)
"""Values of rows x models, with many ties."""


def write(
    folder: Path, values: Table, cuts: Sequence[int] = (), **others: object
) -> dict[str, tuple[str, ...]]:
    """Write the values per row of each model, in one file or several; return the files of a request."""
    files = {}
    bounds = [0, *cuts, len(values)]
    for number, column in enumerate(values.T):
        model = f"m{number:02d}"
        files[model] = tuple(f"{model}-{part}.arrow" for part in range(len(bounds) - 1))
        for name, begin, end in zip(files[model], bounds[:-1], bounds[1:], strict=True):
            columns = {"id": [f"row-{row}" for row in range(begin, end)], "loss": column[begin:end], **others}
            write_columns(folder / name, columns)
    return files


def compare(folder: Path, files: Mapping[str, tuple[str, ...]], **options: object) -> ComparedRows:
    request = RowsRequest.model_validate({"files": files, "metric": "loss", "mode": "min", **options})
    return compare_rows(request, lambda name: (folder / name).open("rb"))


@given(tables, st.sampled_from(["max", "min"]), st.integers(1, 40), st.data())
def test_rows_equal_a_naive_selection(values: Table, mode: str, size: int, data: st.DataObject) -> None:
    """The hardest rows and the rows of a pair, with ties in the order of the test, for values in several files."""
    rows, models = values.shape
    cuts = sorted(data.draw(st.lists(st.integers(1, max(1, rows - 1)), max_size=2))) if rows > 1 else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write(folder, values, cuts)
        found = compare(folder, files, mode=mode, size=size, shown=3)
    sign = 1 if mode == "max" else -1
    mean = [float(np.mean(row)) for row in values]
    by_mean = sorted(range(rows), key=lambda row: (sign * round(mean[row], 9), row))
    assert [each.id for each in found.hardest] == [f"row-{row}" for row in by_mean[:size]]
    assert [each.mean for each in found.hardest] == pytest.approx([mean[row] for row in by_mean[:size]])
    best = sorted(range(models), key=lambda model: (-sign * round(float(values[:, model].mean()), 9), model))
    assert found.all_models == tuple(f"m{model:02d}" for model in best)
    assert found.models == found.all_models[:3]
    for each in (*found.hardest, *found.disagree):
        row = int(str(each.id).removeprefix("row-"))
        assert each.values == tuple(values[row, model] for model in best[:3])
    if models == 1:
        assert (found.disagree, found.different) == ((), 0)
        return
    distance = np.abs(values[:, best[0]] - values[:, best[1]])
    different = sorted((row for row in range(rows) if distance[row]), key=lambda row: (-distance[row], row))
    assert found.different == len(different)
    assert [each.id for each in found.disagree] == [f"row-{row}" for row in different[:size]]


@given(tables, st.integers(1, 40), st.data())
def test_the_table_of_a_notebook_equals_a_naive_one(values: Table, size: int, data: st.DataObject) -> None:
    """All rows in the order of the test, the hardest ones of some models, and those where two models differ."""
    names = [f"m{number:02d}" for number in range(values.shape[1])]
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    columns = values[:, [names.index(name) for name in chosen]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        request = RankingRequest(files=write(folder, values), metric="loss", mode="min")
        whole = rows_table(request, lambda file: (folder / file).open("rb"))
        hardest = rows_table(request, lambda file: (folder / file).open("rb"), hardest=size, models=chosen)
        pair = (
            rows_table(request, lambda file: (folder / file).open("rb"), disagree=chosen)
            if chosen[1:2] and not chosen[2:]
            else None
        )
    assert [*whole.columns] == [*names, "mean"]
    assert whole[names].to_numpy().tolist() == values.tolist()
    expected = sorted(range(len(values)), key=lambda row: (-round(float(columns[row].mean()), 9), row))[:size]
    assert [*hardest.index] == [f"row-{row}" for row in expected]
    assert hardest[chosen].to_numpy().tolist() == columns[expected].tolist()
    if pair is not None:
        distance = columns[:, 0] - columns[:, 1]
        rows = sorted(
            (row for row in range(len(values)) if distance[row]), key=lambda row: (-abs(distance[row]), row)
        )
        assert [*pair.index] == [f"row-{row}" for row in rows]
        assert pair["difference"].tolist() == distance[rows].tolist()


def test_labels_and_predictions_are_columns(tmp_path: Path) -> None:
    """Labels once, predictions per model."""
    files = write(tmp_path, np.array([[0.0, 1.0], [2.0, 0.0]]), label=[7, 1], prediction=[7, 9])
    found = compare(tmp_path, files)
    assert [(each.id, each.label, each.predictions) for each in found.hardest] == [
        ("row-1", 1.0, (9.0, 9.0)),
        ("row-0", 7.0, (7.0, 7.0)),
    ]
    assert found.models == ("m01", "m00")
    request = RankingRequest(files=files, metric="loss", mode="min")
    table = rows_table(request, lambda name: (tmp_path / name).open("rb"), hardest=1)
    assert table.to_dict("records") == [
        {"label": 1, "m00": 2.0, "m01": 0.0, "m00 prediction": 9, "m01 prediction": 9, "mean": 1.0}
    ]


@pytest.mark.parametrize(("mode", "wrong"), [("max", 1), ("min", 2)])
def test_rows_that_every_model_gets_wrong_are_counted(tmp_path: Path, mode: str, wrong: int) -> None:
    """Only if all values are 0 or 1: a loss has no right and wrong."""
    files = write(tmp_path, np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    assert compare(tmp_path, files, mode=mode).all_wrong == wrong
    files = write(tmp_path, np.array([[0.5, 1.0]]))
    assert compare(tmp_path, files, mode=mode).all_wrong is None


def test_requests_that_cannot_be_answered_name_the_reason(tmp_path: Path) -> None:
    """Unknown models and metrics, no direction, other rows, and a table that is too large."""
    files = write(tmp_path, np.ones((4, 7)))
    with pytest.raises(
        DataError, match=r"no values per row of 'm99': it has them of m00, .*, m04 and 2 others"
    ):
        compare(tmp_path, files, disagree=("m00", "m99"))
    with pytest.raises(DataError, match="'auc' has no values per row: the test has them of loss"):
        compare(tmp_path, files, metric="auc")
    with pytest.raises(DataError, match="unknown whether a higher loss is better"):
        compare(tmp_path, files, mode="")
    write_columns(tmp_path / "m01-0.arrow", {"id": [4, 3, 2, 1], "loss": np.ones(4)})
    with pytest.raises(DataError, match="m01 was tested on other rows than m00"):
        compare(tmp_path, files)


def test_a_table_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the ways to choose fewer rows or models."""
    monkeypatch.setattr(tables_module, "MAX_VALUES", 8)
    request = RankingRequest(files=write(tmp_path, np.ones((5, 2))), metric="loss", mode="min")
    with pytest.raises(DataError, match="10 values of 2 models, more than 8: pass hardest=100"):
        rows_table(request, lambda name: (tmp_path / name).open("rb"))
    assert len(rows_table(request, lambda name: (tmp_path / name).open("rb"), hardest=4)) == 4


def test_ids_of_few_rows_are_not_taken_from_objects_of_all(tmp_path: Path) -> None:
    """A million texts as Python objects take a second, for a page with 20 of them."""
    files = write(tmp_path, np.zeros((100_000, 1)), cuts=(40_000,))
    reader = RowValues(files, "loss", lambda name: (tmp_path / name).open("rb"))
    assert reader.num_rows == 100_000
    chosen = np.array([99_999, 0, 40_000])
    tracemalloc.start()
    try:
        found = reader.ids(chosen)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert found.tolist() == ["row-99999", "row-0", "row-40000"]
    assert reader.ids()[chosen].tolist() == found.tolist()
