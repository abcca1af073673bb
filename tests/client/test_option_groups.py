"""Option groups of `run_fit`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from cerebro import ASHA, Experiment, Limits, Parallelism, Plateau, Scheduling, Search
from cerebro.client.experiment_file.schema import ExperimentFile
from cerebro.client.requests.run_requests import FitOptions, arguments_from_flat
from cerebro.errors import DataError


def test_flat_options_of_a_file_become_arguments_of_run_fit() -> None:
    """Groups without options are omitted."""
    flat = {
        "search": ASHA(),
        "stop": Plateau(),
        "gang": 2,
        "scheduler": "fifo",
        "hours": 3,
        "priority": "low",
    }
    assert arguments_from_flat(flat) == {
        "search": Search(ASHA(), stop=Plateau()),
        "scheduling": Scheduling(scheduler="fifo"),
        "limits": Limits(hours=3),
        "parallelism": Parallelism(gang=2),
        "priority": "low",
    }
    assert arguments_from_flat({"epochs": 3}) == {"epochs": 3}


def test_a_file_has_every_option_of_run_fit_with_its_default() -> None:
    """The defaults of the flat options are the defaults of `run_fit`."""
    fit: Any = ExperimentFile.model_fields["fit"].annotation
    (model,) = [each for each in fit.__args__ if each is not type(None)]
    defaults = {
        name: field.default for name, field in model.model_fields.items() if name not in ("spec", "space")
    }
    accepted = inspect.signature(Experiment.run_fit).parameters.keys()
    assert arguments_from_flat(defaults).keys() == accepted - {"self", "spec", "search_space", "progress"}
    options = FitOptions.from_flat(defaults)
    assert (options.scheduling, options.limits, options.parallelism) == (
        Scheduling(),
        Limits(),
        Parallelism(),
    )
    assert Search.of(options.search) == Search()


@pytest.mark.parametrize("name", ["scheduling", "limits", "parallelism"])
def test_a_dict_is_refused_as_option_group(name: str) -> None:
    """The error names the class to use."""
    given: dict[str, Any] = {name: {"hours": 3}}
    with pytest.raises(DataError, match=rf"{name} is .*, expected an object of cerebro\.{name.capitalize()}"):
        FitOptions(**given)


def test_an_unknown_scheduler_is_refused_with_the_choices() -> None:
    """The planner is on or off."""
    wrong: Any = "yes"
    with pytest.raises(DataError, match=r"there is no scheduler 'best': choose one of .*lrptw"):
        Scheduling(scheduler="best")
    with pytest.raises(DataError, match="planner is 'yes', expected True or False"):
        Scheduling(planner=wrong)
