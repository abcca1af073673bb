"""User code in the process of its user: restored as a worker restores it, with the files that a worker would give it.

For a dry run and for the modules of a trained model. A worker has a process for each of these things; here the process
is the user's, so what is changed in it for a while is put back.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cerebro.archive import extract
from cerebro.contract.records import ExperimentRecord
from cerebro.encoding import decode
from cerebro.misc import fetch_misc


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """What specs of one experiment need around them.

    Attributes:
        record: of the experiment.
        archive: bytes of a code archive by its hash.
        folder: for its files and the miscellaneous ones; kept if it is a cache, else removed by whoever made it.
    """

    record: ExperimentRecord
    archive: Callable[[str], bytes]
    folder: Path

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Let the archive's files be imported, behind all else, as on a worker."""
        if self.record.archive is None:
            yield
            return
        place = self.folder / "code" / self.record.archive
        extract(self.archive(self.record.archive), place)
        sys.path.append(str(place))
        try:
            yield
        finally:
            sys.path.remove(str(place))

    def spec(self, encoded: str) -> Any:
        """A spec restored, and told where the miscellaneous files are; not initialised.

        Raises:
            SpecError: it cannot be restored.
            LocatorError, ObjectStoreError: a miscellaneous file cannot be had.
        """
        spec = decode(encoded)
        spec.misc_dir = fetch_misc(self.record.locators.misc, self.folder / "misc")
        return spec


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the global random generators of Python, NumPy and torch back to where they were."""
    torch: Any = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    cpu = torch.get_rng_state() if torch else None
    # Not initialised here: that would take memory of each GPU.
    gpus = torch.cuda.get_rng_state_all() if torch and torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch:
            torch.set_rng_state(cpu)
            if gpus:
                torch.cuda.set_rng_state_all(gpus)
