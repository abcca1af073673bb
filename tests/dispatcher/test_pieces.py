"""The small pure parts: settings, formats, locators, counting of failures."""

from __future__ import annotations

import math

import pytest

from cerebro.errors import ClusterError
from dispatcher.pages import formats
from dispatcher.settings import Settings
from dispatcher.start.form import locator_problem
from tests.dispatcher.fakes import TOKEN
from tests.dispatcher.stories import NOW

NEEDED = {"CEREBRO_SERVER": "http://127.0.0.1:7070/", "CEREBRO_TOKEN": TOKEN}


def test_settings_of_a_bare_environment() -> None:
    """Loopback, no links; and the token does not show."""
    settings = Settings.from_environment(NEEDED)
    assert (settings.host, settings.port) == ("127.0.0.1", 7080)
    assert settings.server == "http://127.0.0.1:7070"
    assert settings.link_tensorboard is None
    assert TOKEN not in repr(settings)


def test_settings_that_are_given() -> None:
    """Each variable reaches its field."""
    settings = Settings.from_environment(
        NEEDED
        | {
            "CEREBRO_BIND": "[::1]:80",
            "CEREBRO_LINK_NOTEBOOK": "https://n.example/lab",
            "CEREBRO_PUBLIC_HOSTS": "Cerebro.example, b.example,",
            "CEREBRO_HTTPS": "1",
        }
    )
    assert (settings.host, settings.port) == ("::1", 80)
    assert settings.link_notebook == "https://n.example/lab"
    assert settings.public_hosts == {"cerebro.example", "b.example"}
    assert settings.is_https


@pytest.mark.parametrize(
    "proxy",
    [
        {"CEREBRO_AUTH_HEADER": "X-Forwarded-User", "CEREBRO_AUTH_PROXIES": "127.0.0.1"},
        {"CEREBRO_PUBLIC_HOSTS": "cerebro.example"},
        {"CEREBRO_HTTPS": "1"},
        {"CEREBRO_BIND": "0.0.0.0:7080"},
    ],
)
def test_page_behind_a_proxy_is_not_local(proxy: dict[str, str]) -> None:
    """It listens on loopback, but others reach it: what only this machine's user may read is not theirs."""
    assert Settings.from_environment(NEEDED).is_local
    assert not Settings.from_environment(NEEDED | proxy).is_local


@pytest.mark.parametrize(
    "change",
    [
        {"CEREBRO_TOKEN": ""},
        {"CEREBRO_TOKEN": "  "},
        {"CEREBRO_SERVER": ""},
        {"CEREBRO_SERVER": "127.0.0.1:7070"},
        {"CEREBRO_BIND": "7080x"},
        {"CEREBRO_LINK_TENSORBOARD": "javascript:alert(1)"},
        {"CEREBRO_LINK_NOTEBOOK": "file:///etc/passwd"},
    ],
)
def test_settings_that_are_wrong(change: dict[str, str]) -> None:
    """The message names the variable."""
    with pytest.raises(ClusterError, match=next(iter(change))):
        Settings.from_environment(NEEDED | change)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\u2013"),
        (0.97531234, "0.975312"),
        (1e-9, "1e-09"),
        (math.nan, "NaN"),
        (math.inf, "\u221e"),
        (-math.inf, "-\u221e"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    """Six digits; missing, NaN and infinity differ."""
    assert formats.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\u2013"),
        (-3, "0 s"),
        (0.2, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (90_061, "1 d 1 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    """Two sub-epochs at most."""
    assert formats.duration(seconds) == text


def test_ages_and_shares() -> None:
    """One sub-epoch for ages; per cent is rounded down, so that 100 means all."""
    assert [formats.ago(s) for s in (None, 0.4, 75, 7300)] == ["\u2013", "now", "1 min ago", "2 h ago"]
    assert [formats.percent(d, t) for d, t in ((199, 200), (200, 200), (0, 0))] == ["99 %", "100 %", "\u2013"]
    assert formats.iso(NOW) == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize(
    "text", ["/data/a.csv", "file:///data/a.csv", "FILE:///a", "s3://bucket/key/a.csv", "/with space"]
)
def test_locators_that_may_exist(text: str) -> None:
    """Absolute paths, file:// and s3://."""
    assert locator_problem(text) == ""


@pytest.mark.parametrize(
    "text",
    ["a.csv", "../a.csv", "~/a.csv", "s3://bucket", "s3:///key", "s3:bucket/key", "file://host/a", "file:a", "http://x/a",
     "/a\x00b", "/" + "a" * 3000, "C:\\data"],
)  # fmt: skip
def test_locators_that_cannot_exist(text: str) -> None:
    """Each gets a sentence."""
    assert locator_problem(text).endswith(".")
