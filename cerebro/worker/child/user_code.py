"""User code in the child process: received as text, decoded once, initialised once.

Handlers get specs from `Context.user_code`; the task loop adds the encoded code that the agent sends. Decoding runs
user code. The child fetches no code itself: only the agent reaches the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cerebro.contract.tasks.bodies import FittingTask, SearchTask, TaskBody
from cerebro.contract.tasks.checkpoints import FittedRef
from cerebro.data.misc import fetch_misc
from cerebro.errors import SpecError
from cerebro.runtime.volumes import Volumes
from cerebro.usercode.encoding import decode
from cerebro.usercode.fitted import read_fitted, restore_fitted
from cerebro.worker.child.start_up import StartUp


class UserCode:
    """Decoded user code of a child. Only for the child's main thread.

    Args:
        start_up: marked as cold when a spec is initialised.
    """

    def __init__(self, volumes: Volumes, start_up: StartUp) -> None:
        self._volumes, self._start_up = volumes, start_up
        self._codes: dict[str, str] = {}
        self._specs: dict[tuple[str, tuple[str, ...], FittedRef | None], Any] = {}
        self._objects: dict[str, Any] = {}

    @property
    def codes(self) -> dict[str, str]:
        """Encoded user code by hash, received until now."""
        return dict(self._codes)

    def learn(self, codes: Mapping[str, str]) -> None:
        """Add encoded user code by hash."""
        self._codes.update(codes)

    def decode(self, sha256: str) -> Any:
        """Decode a new copy of an object, independent of earlier tasks.

        Raises:
            SpecError: the code was not received.
        """
        return decode(self._encoded(sha256))

    def decode_once(self, sha256: str) -> Any:
        """Decode an object, such as a user's own technique, once per child.

        Raises:
            SpecError: the code was not received.
        """
        if sha256 not in self._objects:
            self._objects[sha256] = self.decode(sha256)
        return self._objects[sha256]

    def spec_factory(
        self, sha256: str, misc: tuple[str, ...], fitted: FittedRef | None = None
    ) -> Callable[[], Any]:
        """Return a function that decodes the spec; each ETL process calls it.

        Args:
            fitted: reference to the result of `ETLSpec.fit` for the data set.

        Raises:
            SpecError: the code was not received.
            DataError: the fitted file is missing from the shared volume or damaged.
        """
        encoded, misc_dir = self._encoded(sha256), fetch_misc(misc, self._volumes.misc)
        content = None if fitted is None else read_fitted(self._volumes.shared / fitted.name, fitted)

        def make() -> Any:
            spec = decode(encoded)
            spec.misc_dir = misc_dir
            if content is not None:
                spec.fitted = restore_fitted(content)
            return spec

        return make

    def spec(self, sha256: str, misc: tuple[str, ...], fitted: FittedRef | None = None) -> Any:
        """Decode and initialise the user's spec once per child. See `spec_factory`."""
        if (sha256, misc, fitted) not in self._specs:
            self._start_up.is_cold = True
            spec = self.spec_factory(sha256, misc, fitted)()
            spec.initialize_worker()
            self._specs[sha256, misc, fitted] = spec
        return self._specs[sha256, misc, fitted]

    def prepare(self, body: TaskBody, *, initialises: bool) -> None:
        """Decode user code for such tasks, so that a fork of this process has its imports.

        Args:
            initialises: also create the spec, as `spec` does. Not for `fit`, which runs before
                `initialize_worker`, and not for a search, which has no spec.
        """
        if initialises and not isinstance(body, FittingTask | SearchTask):
            self.spec(body.code, body.misc, body.fitted)
        else:
            self.decode(body.code)

    def _encoded(self, sha256: str) -> str:
        if sha256 not in self._codes:
            raise SpecError(f"user code {sha256[:12]} did not reach the worker: see the worker's log")
        return self._codes[sha256]
