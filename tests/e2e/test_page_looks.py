"""Every page of a real run, once with each width and each colour scheme."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cerebro import Experiment
from tests.dispatcher.gallery import TABS
from tests.e2e.browser import (
    DESKTOP,
    PHONE,
    Complaints,
    Scheme,
    mistakes,
    settle,
    sign_in,
    window,
)
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(home: Path, names: Iterator[str], prepared: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an experiment with a fit that has a failed model, and a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CEREBRO_HOME", str(home))
        patch.delenv("CEREBRO_SERVER", raising=False)
        lab = Lab(home, tmp_path_factory.mktemp("trained"), names)
        experiment = lab.attach(prepared)
        lab.result(lab.fit(experiment, TinyTraining(trouble={"c": "raise"}), tags="abc"), experiment)
        experiment.run_test(split="valid", progress=False)
        lab.end()
    return prepared


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "dark"), (PHONE, "light")], ids=["desktop", "phone"])
def test_every_page_of_a_real_run_is_accessible(
    lab: Lab, trained: str, browser: Browser, size: tuple[int, int], scheme: Scheme, tmp_path: Path
) -> None:
    """No serious violation, no overflow, no console message."""
    wrong: list[str] = []
    complaints, info = Complaints(), lab.info()
    runs = lab.log(Experiment.attach(trained)).state().runs.values()
    newest = next(run for run in reversed(runs) if run.models)  # other tests trained before
    failed = next(model.id for model in newest.models.values() if model.failures.final)
    with window(browser, size, scheme) as context:
        page = complaints.listen(context.new_page())
        sign_in(page, info.dispatcher, info.token())
        page_paths = [
            f"/experiments/{trained}{tab}" for tab in (*TABS, "/models/m00", f"/models/{failed}", "/delete")
        ]
        for path in ("/experiments", "/start", "/cluster", *page_paths):
            page.goto(info.dispatcher + path)
            settle(page)
            wrong += mistakes(page, path, tmp_path)
    assert not wrong, "\n".join(wrong)
    complaints.check()
