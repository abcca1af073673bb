"""Figures under a finger: Plotly's buttons come with the pointer, so on a touch screen they would never go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dispatcher.fakes import TOKEN
from tests.dispatcher.gallery import gallery
from tests.dispatcher.serving import serving
from tests.e2e.browser import DESKTOP, PHONE, chromium, settle, sign_in, window

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_buttons_lie_over_a_figures_title_only_where_there_is_a_pointer(tmp_path: Path) -> None:
    """On a phone they are left out."""
    buttons = {}
    with serving(gallery(tmp_path).app) as address, chromium() as browser:
        for name, size in (("desktop", DESKTOP), ("phone", PHONE)):
            with window(browser, size) as context:
                page = context.new_page()
                sign_in(page, address, TOKEN)
                page.goto(f"{address}/experiments/done/curves")
                settle(page)
                page.wait_for_selector(".plot .main-svg")
                buttons[name] = page.locator(".plot .modebar-btn").count()
    assert buttons["desktop"] > 0
    assert buttons["phone"] == 0
