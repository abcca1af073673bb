"""Trees become named fields and back; unsupported values are reported by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cerebro.data.fields import Layout
from cerebro.data.trees import DTYPES, flatten, rebuild
from cerebro.errors import DataError, RowError

_leaves = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False),
    npst.arrays(
        st.sampled_from([np.dtype(name) for name in DTYPES]),
        npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
        elements={"allow_nan": False},
    ),
)
_keys = st.text(min_size=0, max_size=4)
_trees = st.recursive(
    _leaves,
    lambda children: (
        st.dictionaries(_keys, children, min_size=1, max_size=3)
        | st.lists(children, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=6,
)


def _same(left: Any, right: Any) -> bool:
    """Return True if two trees have the same nesting and values."""
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(_same(left[k], right[k]) for k in left)
        )
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(_same, left, right))
    if left is None:
        return right is None
    return bool(np.array_equal(np.asarray(left), np.asarray(right)))


@settings(deadline=None)
@given(inputs=_trees, outputs=st.none() | _trees)
def test_a_flattened_row_is_rebuilt_unchanged(inputs: Any, outputs: Any) -> None:
    """Flattening and rebuilding keeps nesting and values for any keys."""
    row = flatten(1, inputs, outputs)
    assert _same(inputs, rebuild(row.structure["input"], row.values))
    assert _same(outputs, rebuild(row.structure["output"], row.values))


@settings(deadline=None)
@given(inputs=_trees)
def test_a_layout_survives_json(inputs: Any) -> None:
    """The layout describes the same rows after the round trip."""
    row = flatten("a", inputs, 1)
    layout = Layout.from_json(Layout.of(row).to_json())
    assert layout == Layout.of(row)
    layout.check(row)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "bool"),
        (3, "int64"),
        (0.5, "float32"),
        (np.float64(0.5), "float64"),
        (np.bool_(True), "bool"),
        (np.zeros(2, np.float16), "float16"),
        (np.zeros(2, ">i4"), "int32"),
        (torch.zeros(2, dtype=torch.float16), "float16"),
        (torch.zeros(2, requires_grad=True), "float32"),
        (torch.nn.Parameter(torch.zeros(2)), "float32"),
        (torch.tensor(True), "bool"),
    ],
)
def test_numbers_and_tensors_keep_torchs_types(value: object, dtype: str) -> None:
    """Python numbers get torch's default dtype; arrays and tensors keep theirs, in native byte order."""
    array = flatten(1, value, None).values["input"]
    assert array.dtype.name == dtype
    assert array.dtype.isnative


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            "cat",
            r"row 7: field 'output\.label' is a builtins\.str.*CLASSES\.index.*looked up in the metadata",
        ),
        ([1, 2], r"row 7: field 'output\.label' is a builtins\.list.*tuple"),
        (None, r"row 7: field 'output\.label' is a builtins\.NoneType"),
        (np.array(["a"]), r"row 7: field 'output\.label' is an array of dtype <U1"),
        (np.array([None]), r"row 7: field 'output\.label' is an array of dtype object"),
        (
            pd.Series([1]),
            r"'output\.label' is a pandas\..*Series; row_preprocessor must return .* Use \.to_numpy\(\)",
        ),
        (1j, r"row 7: field 'output\.label' is a builtins\.complex"),
        (2**63, r"row 7: field 'output\.label' cannot be stored"),
        (
            np.ma.array([1.0, 2.0], mask=[True, False]),
            r"row 7: field 'output\.label' cannot be stored: it has masked",
        ),
        (1e300, r"row 7: field 'output\.label' cannot be stored.*np\.float64"),
        (torch.zeros(2, dtype=torch.bfloat16), r"row 7: field 'output\.label' cannot be stored"),
    ],
)
def test_values_that_cannot_be_stored_are_named(value: object, expected: str) -> None:
    """The error names row, field, type and the expected return value."""
    with pytest.raises(RowError, match=expected):
        flatten(7, 1, {"label": value})


def test_an_input_is_required() -> None:
    """Only the output may be None; an input without fields raises."""
    with pytest.raises(RowError, match="NoneType"):
        flatten(7, None, 1)
    with pytest.raises(RowError, match="input is empty"):
        flatten(7, {}, 1)


def test_keys_must_be_strings_and_trees_finite() -> None:
    """A number as key and a recursive dict raise an error."""
    with pytest.raises(RowError, match="keys must be strings"):
        flatten(7, {1: 2}, None)
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(RowError, match="deep"):
        flatten(7, endless, None)


def test_an_error_about_a_shape_explains_padding() -> None:
    """The error names both rows, the field, both shapes and the fix."""
    layout = Layout.of(flatten("first", {"image": np.zeros((3, 4))}, 1))
    with pytest.raises(RowError) as caught:
        layout.check(flatten("odd", {"image": np.zeros((3, 5))}, 1))
    for part in ["'odd'", "'first'", "'input.image'", "(3, 4)", "(3, 5)", "Pad"]:
        assert part in str(caught.value)


def test_an_error_about_a_dtype_explains_the_conversion() -> None:
    """The error names the field and both dtypes."""
    layout = Layout.of(flatten(1, 1.0, 1))
    with pytest.raises(RowError, match=r"'input' of row 2.*int64.*row \(id 1\).*float32.*astype"):
        layout.check(flatten(2, 1, 1))


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ({"a": 1, "b": 1}, {"a": 1}, r"no field 'input\.b'"),
        ({"a": 1}, {"a": 1, "b": 1}, r"a field 'input\.b', the first row .* does not"),
        ({"0": 1}, (1,), "nested differently"),
    ],
)
def test_a_row_of_another_nesting_is_named(first: object, other: object, expected: str) -> None:
    """Missing, added and differently nested fields have different errors."""
    with pytest.raises(RowError, match=expected):
        Layout.of(flatten(1, first, None)).check(flatten(2, other, None))


def test_the_order_of_keys_does_not_matter() -> None:
    """Rows with the same keys in another order match."""
    Layout.of(flatten(1, {"a": 1, "b": 2.0}, None)).check(flatten(2, {"b": 1.0, "a": 5}, None))


def test_an_unknown_dtype_on_disk_is_refused() -> None:
    """A layout of a later version raises with the fix."""
    stored = Layout.of(flatten(1, 1, None)).to_json()
    stored["fields"][0]["dtype"] = "float8"
    with pytest.raises(DataError, match="float8"):
        Layout.from_json(stored)
