"""Settings, formats, locators and failure counters."""

from __future__ import annotations

import pytest

from cerebro.errors import ClusterError
from dispatcher.settings import Settings
from dispatcher.start.form import locator_problem
from tests.dispatcher.fakes import TOKEN

NEEDED = {"CEREBRO_SERVER": "http://127.0.0.1:7070/", "CEREBRO_TOKEN": TOKEN}


def test_each_variable_sets_its_field() -> None:
    """Each variable sets its field."""
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
    assert settings.links.notebook == "https://n.example/lab"
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
    """The dispatcher listens on loopback, but remote users reach it, so local-only content is hidden."""
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
def test_wrong_settings_are_refused(change: dict[str, str]) -> None:
    """The message names the variable."""
    with pytest.raises(ClusterError, match=next(iter(change))):
        Settings.from_environment(NEEDED | change)


@pytest.mark.parametrize(
    "text",
    ["a.csv", "../a.csv", "~/a.csv", "s3://bucket", "s3:///key", "s3:bucket/key", "file://host/a", "file:a", "http://x/a",
     "/a\x00b", "/" + "a" * 3000, "C:\\data"],
)  # fmt: skip
def test_impossible_locators_are_refused(text: str) -> None:
    """Each has a message."""
    assert locator_problem(text).endswith(".")
