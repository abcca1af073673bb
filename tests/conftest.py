"""Fixtures and pytest hooks for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.control_groups import limited

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from cerebro.runtime.kvs.client import KvsClient
    from tests.kvs_api.real import Service

pytest_plugins = ["tests.guards"]

# A shell without job control starts background jobs with SIGINT ignored, and all child processes would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# TensorBoard's readers import TensorFlow if it is installed, as for the Keras tests. The import takes seconds, and
# OR-Tools crashes in a process with TensorFlow (google/or-tools, issue 3230). With this module TensorBoard uses its own
# stub.
sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")

_ROOT = Path(__file__).resolve().parent.parent
_IN_CI = bool(os.environ.get("CI"))
_SHARES = {"commit": 0.1, "thorough": 1.0}
"""Profile of hypothesis -> factor for the number of examples of each property test (default 100)."""
_FEW = 5
"""A test with at most this number of examples keeps it in every profile."""

# In CI each profile tries the same examples in each run, so a failure is due to the change, and CI=true reproduces it.
# Locally `thorough` tries new examples; .hypothesis/ keeps failures, and the next run in this checkout starts with
# them.
_CLOCKLESS: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("commit", **_CLOCKLESS)
hypothesis.settings.register_profile(
    "thorough",
    **_CLOCKLESS,
    derandomize=_IN_CI,
    database=None if _IN_CI else DirectoryBasedExampleDatabase(_ROOT / ".hypothesis" / "examples"),
    print_blob=True,
)
hypothesis.settings.load_profile("commit")  # --hypothesis-profile selects another one


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Exempt imported objects from garbage collection, since they stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scale the examples of each property test by the profile; tests marked slow keep all.

    A hook of pytest, since hypothesis has none and tests could forget a decorator.
    """
    share = _SHARES.get(hypothesis.settings.get_current_profile_name(), 1.0)
    tests = {
        getattr(item.obj, "__func__", item.obj)
        for item in items
        if isinstance(item, pytest.Function)
        and hypothesis.is_hypothesis_test(item.obj)
        and item.get_closest_marker("slow") is None
    }
    for test in tests:
        settings = test._hypothesis_internal_use_settings
        test._hypothesis_internal_use_settings = hypothesis.settings(
            settings,
            max_examples=max(
                min(_FEW, settings.max_examples),
                round(settings.max_examples * share),
            ),
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that start after `.ci/run`'s deadline, so the run still reports the others."""
    end = os.environ.get("NO_TEST_STARTS_AFTER")
    if end and time.time() > float(end):
        pytest.skip("no time is left: NO_TEST_STARTS_AFTER has passed")
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("this machine has no GPU that torch can use")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Make reports valid UTF-8, since a test may print any text and xdist sends it to another process."""
    return _sendable((yield))


def _sendable(report: Any) -> Any:
    match report:
        case str():
            return report.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_sendable(key): _sendable(value) for key, value in report.items()}
        case list() | tuple():
            return type(report)(map(_sendable, report))
        case _:
            return report


@pytest.fixture(scope="module")
def browser(processes: None) -> Iterator[Browser]:
    """A browser per module."""
    from tests.e2e.browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def shared_service(commands: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A store per process, for tests that do not depend on load. Tests that kill the database start their own."""
    from tests.kvs_api.real import Database, Service

    with Database(tmp_path_factory.mktemp("kvs")) as database, Service(database) as service:
        yield service


@pytest.fixture
def service(shared_service: Service) -> Service:
    """The shared store, emptied."""
    shared_service.database.empty()
    return shared_service


@pytest.fixture
def kvs(service: Service) -> Iterator[KvsClient]:
    """A client for the shared store."""
    client = service.client()
    yield client
    client.close()


@pytest.fixture
def small_group() -> Iterator[Path]:
    """See `tests.control_groups.limited`."""
    with limited() as group:
        yield group
