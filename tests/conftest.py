"""What tests of every area share."""

from __future__ import annotations

import faulthandler
import gc
import math
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

# A shell without job control has what it starts in the background ignore SIGINT, and so would all that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# TensorBoard's readers take TensorFlow where it is installed, as it is for the tests of Keras: it takes seconds to
# import, and OR-Tools crashes in a process that has it (google/or-tools, issue 3230). With this module they take their
# own part of it, as they do where Keras is not installed.
sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")

_ROOT = Path(__file__).resolve().parent.parent
_IN_CI = bool(os.environ.get("CI"))
_SHARES = {"commit": 0.15, "thorough": 1.5}
"""Profile of hypothesis -> its share of the examples that each property test asks for (100 if it says nothing)."""
_FEW = 5
"""A test that asks for no more than this gets it in every profile."""
_HANGS_AFTER_S, _NEW_EACH_S = 900.0, 60.0

# In CI each profile tries the same examples at each run: a failure there is due to the change, not to the draw, and
# anyone can repeat it with CI=true. By hand `thorough` draws others at each run: what it finds is kept in .hypothesis/,
# and the next run in the same checkout, of either profile, begins with it.
_CLOCKLESS: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("commit", **_CLOCKLESS)
hypothesis.settings.register_profile(
    "thorough",
    **_CLOCKLESS,
    derandomize=_IN_CI,
    database=None if _IN_CI else DirectoryBasedExampleDatabase(_ROOT / ".hypothesis" / "examples"),
    print_blob=True,
)
hypothesis.settings.load_profile("commit")  # --hypothesis-profile loads another one


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is imported stays: nobody looks for garbage among it, neither while it comes nor while tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each property test the profile's share of its examples; those marked slow get all they ask for.

    Here and not in a decorator of ours: there is no public hook, and a test that forgot the decorator would be slow.
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
        asked = test._hypothesis_internal_use_settings
        test._hypothesis_internal_use_settings = hypothesis.settings(
            asked, max_examples=max(min(_FEW, asked.max_examples), round(asked.max_examples * share))
        )


def pytest_configure(config: pytest.Config) -> None:
    """Errors are still seen while what tests write is not."""
    config.stash[_WATCH] = _Watch(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nobody watches what comes after the tests."""
    config.stash[_WATCH].end()


class _Watch:
    """Shows where a test hangs, before CI's own limit ends it: what all threads are at, a quarter of an hour after it
    began, or up to a minute earlier.

    pytest's `faulthandler_timeout` starts and ends a thread for each test, which takes longer than most tests do.
    """

    def __init__(self, stderr: int) -> None:
        self._stderr, self._since = stderr, -math.inf

    def see(self) -> None:
        """A test begins."""
        if time.monotonic() - self._since > _NEW_EACH_S:
            faulthandler.dump_traceback_later(_HANGS_AFTER_S, file=self._stderr)
            self._since = time.monotonic()

    def end(self) -> None:
        """No more tests."""
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)


_WATCH = pytest.StashKey[_Watch]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where time is limited (`.ci/run`), tests that it has no room for are skipped, rather than all of them lost."""
    item.config.stash[_WATCH].see()
    end = os.environ.get("NO_TEST_STARTS_AFTER")
    if end and time.time() > float(end):
        pytest.skip("no time is left: NO_TEST_STARTS_AFTER has passed")
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("this machine has no GPU that torch can use")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A test may print and log any text: of a report that goes to another process, UTF-8 carries all."""
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
    """One browser for all tests of a module."""
    from tests.e2e.browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def shared_service(commands: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One real store for all tests of a process.

    Its database only answers: no test of it depends on when. Tests that kill a database have one of their own.
    """
    from tests.kvs_api.real import Database, Service

    with Database(tmp_path_factory.mktemp("kvs")) as database, Service(database) as service:
        yield service


@pytest.fixture
def service(shared_service: Service) -> Service:
    """That store, empty."""
    shared_service.database.empty()
    return shared_service


@pytest.fixture
def kvs(service: Service) -> Iterator[KvsClient]:
    """A client of it."""
    client = service.client()
    yield client
    client.close()


@pytest.fixture
def small_group() -> Iterator[Path]:
    """See `tests.control_groups.limited`."""
    with limited() as group:
        yield group
