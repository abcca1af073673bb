"""A `Ragged` returns the same rows in every form."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro import Ragged
from cerebro.errors import DataError

_RESTS = st.sampled_from([(), (1,), (2, 3), (0,)])


def _rows(lengths: list[int], rest: tuple[int, ...]) -> list[Any]:
    """Make arrays with these numbers of distinct entries."""
    sizes = [length * int(np.prod(rest)) for length in lengths]
    ends = np.cumsum(sizes)
    return [
        np.arange(end - size, end, dtype=np.float32).reshape(length, *rest)
        for size, end, length in zip(sizes, ends, lengths, strict=True)
    ]


def _same(found: Any, rows: list[Any]) -> bool:
    return len(found) == len(rows) and all(
        tuple(one.shape) == other.shape and np.array_equal(np.asarray(one), other)
        for one, other in zip(found, rows, strict=True)
    )


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    rest=_RESTS,
    tensors=st.booleans(),
    length=st.none() | st.integers(0, 6),
    data=st.data(),
)
def test_rows_are_the_same_in_every_form(
    lengths: list[int], rest: tuple[int, ...], tensors: bool, length: int | None, data: st.DataObject
) -> None:
    """Single rows, several rows, padded, masked, concatenated and pickled, for arrays and tensors."""
    rows = _rows(lengths, rest)
    ragged = Ragged.of([torch.from_numpy(row) for row in rows] if tensors else rows)
    count = len(rows)
    assert _same(ragged, rows)
    assert _same([ragged[at] for at in range(-count, count)], rows + rows)
    assert ragged.lengths.tolist() == lengths
    assert ragged.longest == max(lengths)
    begin, end = data.draw(st.integers(-count, count)), data.draw(st.integers(-count, count))
    assert _same(ragged[begin:end], rows[begin:end])
    assert _same(ragged[::-2], rows[::-2])
    chosen = data.draw(st.lists(st.integers(-count, count - 1), max_size=4))
    index = torch.tensor(chosen, dtype=torch.int64) if tensors else np.array(chosen, np.int64)
    assert _same(ragged[index], [rows[at] for at in chosen])
    assert _same(ragged[chosen], [rows[at] for at in chosen])
    kept = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    mask = torch.tensor(kept) if tensors else np.array(kept)
    assert _same(ragged[mask], [row for row, is_kept in zip(rows, kept, strict=True) if is_kept])
    assert _same(Ragged.cat([ragged, ragged[begin:end]]), rows + rows[begin:end])
    assert _same(pickle.loads(pickle.dumps(ragged)), rows)
    padded, is_there = ragged.padded(-1, length), ragged.mask(length)
    size = max(lengths) if length is None else length
    assert tuple(padded.shape) == (count, size, *rest)
    for number, row in enumerate(rows):
        kept = row[:size]
        assert np.array_equal(padded[number][: len(kept)], kept)
        assert (padded[number][len(kept) :] == -1).all()
        assert is_there[number].tolist() == [at < len(row) for at in range(size)]


def test_gradients_pass_through_padding() -> None:
    """Gradients of padded rows reach each value once."""
    values = torch.rand(5, 2, requires_grad=True)
    rows = Ragged(torch.arange(5), [0, 2, 2, 5]).with_values(values)
    (rows.padded() * 3).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[3, 3]] * 5


@pytest.mark.slow  # torch loads its compiler for nested tensors, which takes two seconds
def test_the_nested_tensor_of_torch_has_the_same_rows() -> None:
    """One jagged tensor shares the values."""
    rows = [torch.arange(3.0), torch.arange(0.0), torch.arange(2.0)]
    nested = Ragged.of(rows).nested()
    assert [row.tolist() for row in nested.unbind()] == [row.tolist() for row in rows]
    with pytest.raises(DataError, match="NumPy"):
        Ragged.of([np.zeros(2)]).nested()


@pytest.mark.parametrize(
    ("values", "offsets", "expected"),
    [
        (np.arange(3), [0, 2], "3 values, but its offsets end at 2"),
        (np.arange(3), [1, 3], "begin with 0"),
        (np.arange(3), [0, 2, 1, 3], "never decrease"),
        (np.arange(3), [], "have dtype float64, expected whole numbers"),
        (np.arange(3), np.zeros((2, 2), int), "one axis"),
        (np.float32(3), [0], "one number"),
        (torch.arange(3), torch.tensor([0.0, 3.0]), "have dtype float32, expected whole numbers"),
        (torch.arange(3), [0, 4], "3 values, but its offsets end at 4"),
    ],
)
def test_invalid_offsets_are_named(values: Any, offsets: Any, expected: str) -> None:
    """With the expected offsets."""
    with pytest.raises(DataError, match=expected):
        Ragged(values, offsets)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ([np.zeros((2, 3)), np.zeros((2, 4))], r"entry 1 .* shape \(2, 4\).* entry 0 .*\(2, 3\)"),
        ([np.zeros(2), np.zeros(2, np.float32)], "entry 1 .* float32, but entry 0 .* float64"),
        ([np.zeros(2), torch.zeros(2)], "entry 1 .* a tensor"),
        ([[1, 2]], r"builtins\.list, expected an array.*np\.asarray"),
        ([np.float32(1)], "expected an array"),
        ([], "no arrays"),
    ],
)
def test_incompatible_rows_are_named(arrays: Any, expected: str) -> None:
    """With the row's number, its properties and the first row's."""
    with pytest.raises(DataError, match=expected):
        Ragged.of(arrays)


def test_a_missing_row_is_an_error() -> None:
    """IndexError, as with a list."""
    rows = Ragged.of([np.arange(3), np.arange(2)])
    with pytest.raises(IndexError, match="row 2 of a Ragged with 2 rows"):
        rows[2]
    with pytest.raises(IndexError, match="2 rows"):
        rows[[0, -3]]
    with pytest.raises(DataError, match="5 values was given 4"):
        rows.with_values(np.zeros(4))


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
@pytest.mark.parametrize(
    ("index", "error"),
    [
        ((0, 1), TypeError),
        (None, TypeError),
        (True, TypeError),
        ([0.9, 1.2], TypeError),
        ([True, False], IndexError),
        ([True, False, True, False], IndexError),
        ([[True, False, True], [False, False, True]], IndexError),
        ([[0, 1], [1, 2]], IndexError),
    ],
)
def test_an_invalid_index_is_refused(kind: Any, index: Any, error: type[Exception]) -> None:
    """For lists, arrays and tensors: several axes, a mask of the wrong length, other types.

    An empty list selects no rows.
    """
    rows = Ragged.of([kind([1, 2, 3]), kind([4]), kind([5, 6])])
    for each in (index, kind(index)) if isinstance(index, list | bool) else (index,):
        with pytest.raises(
            error, match=r"expected a number, a slice, or a list.* of one boolean for each row"
        ):
            rows[each]
    assert len(rows[[]]) == 0
    assert rows[kind(1)].tolist() == [4]
