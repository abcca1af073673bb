"""The query language that filters and sorts models."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cerebro.errors import BadRequestError
from cerebro.figures.models import Effort, ModelProgress, ModelSummary
from dispatcher.models.query import ModelQuery, matching, selected_columns
from dispatcher.pages import formats
from dispatcher.pages.tables import csv_text
from dispatcher.read_models.columns import FIXED, Columns

COLUMNS = Columns(hyperparameters=("lr", "optimizer", "note", "best"), metrics=("loss", "lr"))


def row(index: int, **changes: Any) -> ModelSummary:
    values: dict[str, Any] = {
        "id": f"m{index:02}",
        "index": index,
        "state": "running",
        "progress": ModelProgress(epoch=1, epochs=2, done=index, total=8),
        "latest": None,
        "latest_epoch": None,
        "best": None,
        "best_epoch": None,
        "metrics": {},
        "hyperparams": {},
        "worker": "",
        "effort": Effort(redone=0, compute_s=0.0, started=0.0, ended=0.0),
        "failure": None,
    }
    return ModelSummary(**(values | changes))


ROWS = [
    row(0, best=0.5, hyperparams={"lr": 0.1, "optimizer": "sgd"}, state="finished"),
    row(1, best=0.2, hyperparams={"lr": 0.01, "optimizer": "Adam"}, worker="worker-1"),
    row(2, hyperparams={"lr": 0.001, "optimizer": "adam", "note": "two words"}, state="failed"),
    row(10, best=0.9, hyperparams={"lr": 1, "note": True}, metrics={"loss": 0.3, "lr": 5.0}),
]


def found(sentence: str, sort: str = "") -> list[str]:
    return [each.id for each in matching(ROWS, ModelQuery(filter=sentence, sort=sort), COLUMNS)]


@pytest.mark.parametrize(
    ("sentence", "ids"),
    [
        ("", ["m00", "m01", "m02", "m10"]),
        ("lr >= 0.01", ["m00", "m01", "m10"]),
        ("hp.lr=0.1", ["m00"]),
        ("metric.lr > 4", ["m10"]),
        ("lr > 0.001 and lr < 1", ["m00", "m01"]),
        ("state = failed or id ~ M1", ["m02", "m10"]),
        ("state = failed or state = finished and lr < 0.1", ["m02"]),
        ("(state = failed or state = finished) and lr < 0.01", ["m02"]),
        ("not state = running", ["m00", "m02"]),
        ("not (state = running or state = failed)", ["m00"]),
        ("optimizer = adam", ["m01", "m02"]),
        ("optimizer != adam", ["m00"]),
        ("optimizer !~ ad", ["m00"]),
        ('note = "two words"', ["m02"]),
        ("note = true", ["m10"]),
        ("best in 0.2..0.5", ["m00", "m01"]),
        ("best in ..0.4", ["m01"]),
        ("best in 0.6..", ["m10"]),
        ("optimizer in sgd, adam", ["m00", "m01", "m02"]),
        ('hp.optimizer in ("sgd")', ["m00"]),
        ('(hp.optimizer in ("sgd", "adam")) and hp.lr in 0.005..0.2', ["m00", "m01"]),
        ("best is empty", ["m02"]),
        ("worker is not empty", ["m01"]),
        ("NOT best IS EMPTY AND lr<=0.01", ["m01"]),
        ("sub_epochs_done > 1", ["m02", "m10"]),
    ],
)
def test_a_filter_selects_matching_models(sentence: str, ids: list[str]) -> None:
    assert found(sentence) == ids


@pytest.mark.parametrize(
    ("sentence", "place", "words"),
    [
        ("lr >=", 6, "expected a value"),
        ("lr", 3, "expected one of"),
        ("learning > 1", 1, "the column 'learning' does not exist"),
        ("lr > 1 state = x", 8, "expected `and`, `or` or the end"),
        ("(lr > 1", 8, "expected `)`"),
        ('note = "open', 8, "a quote is not closed"),
        ("lr > fast", 6, "compares numbers"),
        ("best in a..b", 9, "a range of numbers"),
        ("best is big", 9, "expected `empty`"),
        ("and", 1, "the column 'and' does not exist"),
        ("lr = = 1", 6, "expected a value"),
    ],
)
def test_a_mistake_is_named_with_its_position(sentence: str, place: int, words: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        found(sentence)
    assert f"character {place}:" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("seed", [2**53, 2**53 + 1, 2**60 + 3])
def test_large_integers_are_compared_exactly(seed: int) -> None:
    """As floats they would be equal to their neighbours."""
    rows = [row(n, hyperparams={"seed": seed + n}) for n in range(3)]
    columns = Columns(hyperparameters=("seed",), metrics=())
    requests = {f"= {seed + 1}": ["m01"], f"> {seed + 1}": ["m02"], f"in {seed}..{seed + 1}": ["m00", "m01"]}
    for words, ids in requests.items():
        assert [each.id for each in matching(rows, ModelQuery(filter=f"seed {words}"), columns)] == ids


@pytest.mark.parametrize("value", [20240101, 2**53 + 1, -(10**30)])
def test_integers_are_shown_in_full(value: int) -> None:
    """A seed of eight digits is not shown as 2.0241e+07."""
    assert formats.plain(value) == str(value)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadRequestError, match="nested deeper"):
        found("(" * 500 + "lr > 1" + ")" * 500)
    with pytest.raises(BadRequestError, match="nested deeper"):
        found("not " * 400 + "lr > 1")


def test_rows_without_a_value_come_last_in_both_orders() -> None:
    assert found("", "best") == ["m01", "m00", "m10", "m02"]
    assert found("", "-best") == ["m10", "m00", "m01", "m02"]


def test_models_are_sorted_by_number() -> None:
    rows = [row(index, id=f"m{index}") for index in (10, 9, 100)]
    ordered = matching(rows, ModelQuery(sort="id"), COLUMNS)
    assert [each.id for each in ordered] == ["m9", "m10", "m100"]


def test_numbers_come_before_words_and_nan_last() -> None:
    values: list[object] = ["b", math.nan, 2, "A", 1.5]
    rows = [row(index, hyperparams={"lr": value}) for index, value in enumerate(values)]
    ordered = matching(rows, ModelQuery(sort="hp.lr"), COLUMNS)
    assert [each.id for each in ordered] == ["m04", "m02", "m03", "m00", "m01"]


def test_an_unknown_key_or_column_is_refused() -> None:
    with pytest.raises(BadRequestError, match="the column 'speed' does not exist"):
        found("", "speed")
    with pytest.raises(BadRequestError, match="the column 'speed' does not exist"):
        selected_columns("id,speed", COLUMNS, ())


def test_a_hyperparameter_named_like_a_fixed_column_needs_its_prefix() -> None:
    assert COLUMNS.find("best") is FIXED["best"]
    assert COLUMNS.find("hp.best").name == "hp.best"


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\n=1"])
def test_csv_escapes_formulas(text: str) -> None:
    table = csv_text([text, "id"], [[text, "m00"]])
    assert table.count(f"'{text}") == 2


def test_integers_beyond_floats_are_sorted_filtered_and_printed() -> None:
    huge = [
        row(0, hyperparams={"lr": 10**400}),
        row(1, hyperparams={"lr": 2}),
        row(2, hyperparams={"lr": -(10**400)}),
    ]
    assert [found.id for found in matching(huge, ModelQuery(sort="lr"), COLUMNS)] == ["m02", "m01", "m00"]
    assert [found.id for found in matching(huge, ModelQuery(filter="lr > 5"), COLUMNS)] == ["m00"]
    assert formats.number(10**400) == str(10**400)
