"""Numbers that services read from the environment: what each may be, whoever reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.errors import ClusterError
from cerebro.runtime.numeric_settings import (
    OPEN_RUNS,
    SETTINGS,
    NumericSetting,
    check,
    device_memory,
    real,
    whole,
)

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@given(st.sampled_from(SETTINGS), texts | st.integers().map(str) | st.floats().map(str))
def test_what_is_not_refused_is_a_number_within_its_bounds(setting: NumericSetting, text: str) -> None:
    """Whatever is set; an error names the variable, what it is and what was expected."""
    environment = {setting.name: text}
    refused = ""
    try:
        check(environment)
    except ClusterError as error:
        refused = str(error)
    if refused:
        assert refused == f"{setting.name} is {text!r}, expected {setting.expected}"
        return
    number = real(setting, environment, setting.least)
    assert setting.least <= number <= setting.most
    assert number != float("inf")
    assert not setting.is_whole or whole(setting, environment, int(setting.least)) == number


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_what_is_unset_or_empty_is_the_default(setting: NumericSetting) -> None:
    """A shell and a chart may leave a variable there without a value."""
    for environment in ({}, {setting.name: ""}):
        check(environment)
        assert setting.of(environment) is None
        assert (real(setting, environment, 1.5), whole(setting, environment, 3)) == (1.5, 3)


def test_a_refused_number_of_runs_says_what_it_would_mean() -> None:
    """As somebody wrote who wanted runs to wait for each other."""
    with pytest.raises(ClusterError, match=r"CEREBRO_OPEN_RUNS is '0', expected .*with 1 they wait"):
        check({OPEN_RUNS.name: "0"})


@pytest.mark.parametrize(
    ("text", "size"),
    [("", None), ("1024", 1024), ("512MiB", 512 << 20), ("1.5GiB", 1536 << 20), ("2 KiB", 2048)],
)
def test_a_size_is_written_as_people_do(text: str, size: int | None) -> None:
    """With a sub-epoch or without."""
    assert device_memory({"CEREBRO_DEVICE_MEMORY": text}) == size


@pytest.mark.parametrize("text", ["0", "-1", "1.5 GB", "1.5Gi", "much", "0.1"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """With the setting's name, and what is expected; before a service starts, too."""
    for asked in (device_memory, check):
        with pytest.raises(ClusterError, match=r"CEREBRO_DEVICE_MEMORY is .* expected a size such as 512MiB"):
            asked({"CEREBRO_DEVICE_MEMORY": text})
