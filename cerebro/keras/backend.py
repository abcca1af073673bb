"""Which backend Keras has in this process, and how that computes here. Keras and its backends read the environment when
they are imported or first compute, and never again: importing this imports none of them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from cerebro.errors import SpecError

BACKENDS = ("tensorflow", "torch")

CORES = "CEREBRO_CORES"
"""Variable of a process that trains sub-epochs: with how many threads. Not there in a notebook, whose TensorFlow
computes as its user wants."""

_VARIABLE = "KERAS_BACKEND"
_INTRA, _INTER = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"


def chosen(named: str) -> str:
    """The backend of a spec: the one that it names; else that of this process; else TensorFlow.

    Raises:
        SpecError: there is no such backend, or sub-epochs cannot be trained with it.
    """
    name = named or imported() or os.environ.get(_VARIABLE) or BACKENDS[0]
    if name not in BACKENDS:
        raise SpecError(
            f"the backend of Keras is {name!r}, expected {' or '.join(map(repr, BACKENDS))}: set keras_backend in the "
            "spec"
        )
    return name


def imported() -> str:
    """The backend that Keras has in this process; empty while it was not imported."""
    keras: Any = sys.modules.get("keras")
    return str(keras.config.backend()) if keras is not None and hasattr(keras, "config") else ""


class Backend:
    """A backend that stands in a pickled spec before all that may import Keras: to restore it is to choose it.

    Args:
        name: one of `BACKENDS`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Callable[[str], Backend], tuple[str]]:
        return restored, (self.name,)


def restored(name: str) -> Backend:
    """Have Keras take this backend; where sub-epochs are trained it is imported now, as a part of the start of the
    process. Calling twice is safe.

    Raises:
        SpecError: it was imported with another one, or is not there.
    """
    if imported() not in ("", name):
        raise SpecError(
            f"this process has imported Keras with the backend {imported()!r}, and the spec wants {name!r}: a process "
            f"has one backend. Start a new one with {_VARIABLE}={name}"
        )
    os.environ[_VARIABLE] = name
    cores = os.environ.get(CORES)
    if cores and not imported():
        if name == "tensorflow":
            # The same sums in the same order, wherever and however often: as many threads, no race between them.
            os.environ |= {_INTRA: cores, _INTER: cores, "TF_DETERMINISTIC_OPS": "1"}
            os.environ.setdefault(
                "TF_CPP_MIN_LOG_LEVEL", "1"
            )  # what it says of the processor in each process
        _import(name)
    return Backend(name)


def _import(name: str) -> None:
    try:
        importlib.import_module("keras")
    except ModuleNotFoundError as cause:
        raise SpecError(
            f"the worker has no module {cause.name!r}, which a KerasSubEpochSpec with the backend {name!r} needs: "
            "install Cerebro with its extra 'keras' where workers run (images: make images KERAS=1), or name keras and "
            "its backend in a requirements.txt among the uploaded code"
        ) from cause


def fixed_threads() -> int | None:
    """The number of threads that sub-epochs are computed with here for good; `None`: any number can be set."""
    found = os.environ.get(_INTRA, "")
    return int(found) if imported() == "tensorflow" and os.environ.get(CORES) and found.isdigit() else None
