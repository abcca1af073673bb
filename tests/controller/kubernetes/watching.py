"""The adapter with an emulated API server; tests wait for notifications, not for time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from controller.kubernetes import KubernetesOrchestrator
from controller.kubernetes.nodes import expected, read_news
from controller.kubernetes.pod_creation import creation_failures, read_creation
from controller.kubernetes.reading import read_pod
from controller.scaling.orchestrator import Fleet
from tests.controller.kubernetes.emulator import NAMESPACE, SET, Emulator
from tests.controller.kubernetes.serving import serving
from tests.waiting import HANG_S

LIMIT_S = HANG_S


class Watched:
    """An orchestrator and its notifications.

    The test moves the clock `now`, which decides when the view expires.
    """

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.now = 0.0
        self._news = threading.Condition()
        self.orchestrator: KubernetesOrchestrator

    def until(self, is_there: Callable[[Fleet | None], bool]) -> Fleet | None:
        """Return the first matching view, or fail the test after a limit."""

        def seen() -> bool:
            return is_there(self.orchestrator.fleet())

        with self._news:
            assert self._news.wait_for(seen, LIMIT_S), f"last seen: {self.orchestrator.fleet()}"
            return self.orchestrator.fleet()

    def until_asked(self, is_asked: Callable[[], bool]) -> None:
        """Wait until the server has received such requests."""
        with self.emulator.news:
            assert self.emulator.news.wait_for(is_asked, LIMIT_S)

    def truth(self) -> Fleet | None:
        """Return the cluster's actual content."""
        objects = self.emulator.objects
        if SET not in objects["statefulsets"]:
            return None
        pods = {name: read_pod(content) for name, content in objects["pods"].items()}
        size = objects["statefulsets"][SET]["spec"]["replicas"]
        missing = {f"{SET}-{ordinal}" for ordinal in range(size)} - pods.keys()
        tries = [read_creation(event) for event in objects["events"].values()]
        node_news = filter(None, map(read_news, objects["events"].values()))
        return Fleet(
            pods=pods,
            size=size,
            set_uid=objects["statefulsets"][SET]["metadata"]["uid"],
            not_created=creation_failures(missing, filter(None, tries)),
            expected=expected(pods, node_news),
        )

    def sees_the_truth(self) -> None:
        """Wait until the view equals the cluster."""
        self.until(lambda fleet: fleet == self.truth())

    @contextmanager
    def watching(self) -> Iterator[Watched]:
        """Watch until the block exits."""

        def notify() -> None:
            with self._news:
                self._news.notify_all()

        with serving(self.emulator) as server:
            self.orchestrator = KubernetesOrchestrator(
                server, NAMESPACE, SET, clock=lambda: self.now, changed=notify
            )
            self.orchestrator.start()
            try:
                yield self
            finally:
                self.orchestrator.ask_to_stop()
        self.orchestrator.stop()
