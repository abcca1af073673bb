"""Numeric settings from the environment are checked against their bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.errors import ClusterError
from cerebro.runtime.numeric_settings import (
    SETTINGS,
    NumericSetting,
    check,
    device_memory,
    integer,
    real,
)

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@given(st.sampled_from(SETTINGS), texts | st.integers().map(str) | st.floats().map(str))
def test_an_accepted_setting_is_a_number_in_its_range(setting: NumericSetting, text: str) -> None:
    """The error names the variable, its value and the expected range."""
    environment = {setting.name: text}
    refused = ""
    try:
        check(environment)
    except ClusterError as error:
        refused = str(error)
    if refused:
        assert refused == f"{setting.name} is {text!r}, expected {setting.expected}"
        return
    number = real(setting, environment, setting.minimum)
    assert setting.minimum <= number <= setting.maximum
    assert number != float("inf")
    assert not setting.is_integer or integer(setting, environment, int(setting.minimum)) == number


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_an_unset_or_empty_setting_is_the_default(setting: NumericSetting) -> None:
    """Shells and charts may set a variable to an empty string."""
    for environment in ({}, {setting.name: ""}):
        check(environment)
        assert setting.of(environment) is None
        assert (real(setting, environment, 1.5), integer(setting, environment, 3)) == (1.5, 3)


@pytest.mark.parametrize(
    ("text", "size"),
    [("", None), ("1024", 1024), ("512MiB", 512 << 20), ("1.5GiB", 1536 << 20), ("2 KiB", 2048)],
)
def test_a_size_is_written_as_people_do(text: str, size: int | None) -> None:
    assert device_memory({"CEREBRO_DEVICE_MEMORY": text}) == size
