"""Selection of Keras' backend for this process.

`KerasSubEpochSpec` selects the backend when it is pickled; `KerasAdapter` and the unpickling activate it in the child.
A process has one backend for good. Keras and its backends read the environment only when they are imported or first
compute, so this module sets variables and imports neither at its own import.
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
"""Number of threads, in the environment of a process that trains sub-epochs. Notebooks do not set it."""

_VARIABLE = "KERAS_BACKEND"
_INTRA, _INTER = "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"


def select_backend(named: str) -> str:
    """Return the backend of a spec: its own, else this process's, else TensorFlow.

    Raises:
        SpecError: sub-epochs cannot be trained with the named backend.
    """
    name = named or imported() or os.environ.get(_VARIABLE) or BACKENDS[0]
    if name not in BACKENDS:
        raise SpecError(
            f"the backend of Keras is {name!r}, expected {' or '.join(map(repr, BACKENDS))}: set keras_backend in the "
            "spec"
        )
    return name


def imported() -> str:
    """Return the backend of the imported Keras, or an empty text."""
    keras: Any = sys.modules.get("keras")
    return str(keras.config.backend()) if keras is not None and hasattr(keras, "config") else ""


class Backend:
    """Backend at the start of a pickled spec: unpickling selects it before the spec imports Keras.

    Args:
        name: one of `BACKENDS`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Callable[[str], Backend], tuple[str]]:
        return activate, (self.name,)


def activate(name: str) -> Backend:
    """Select a backend; a process that trains sub-epochs also imports it. Calling again is safe.

    Raises:
        SpecError: Keras was imported with another backend, or is not installed.
    """
    if imported() not in ("", name):
        raise SpecError(
            f"this process has imported Keras with the backend {imported()!r}, but the spec needs {name!r}, and a "
            f"process has one backend. Start a new process with {_VARIABLE}={name}"
        )
    os.environ[_VARIABLE] = name
    cores = os.environ.get(CORES)
    if cores and not imported():
        if name == "tensorflow":
            # Fixed threads and deterministic operations give the same sums in every sub-epoch.
            os.environ |= {_INTRA: cores, _INTER: cores, "TF_DETERMINISTIC_OPS": "1"}
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # Hide messages about the processor.
        _import(name)
    return Backend(name)


def _import(name: str) -> None:
    try:
        importlib.import_module("keras")
    except ModuleNotFoundError as cause:
        raise SpecError(
            f"the worker has no module {cause.name!r}, which a KerasSubEpochSpec with the backend {name!r} needs. "
            "Install Cerebro with its extra 'keras' where workers run (images: make images KERAS=1), or name keras and "
            "its backend in a requirements.txt among the uploaded code"
        ) from cause


def fixed_threads() -> int | None:
    """Return the fixed number of threads of this process, or `None` if it can be set."""
    found = os.environ.get(_INTRA, "")
    return int(found) if imported() == "tensorflow" and os.environ.get(CORES) and found.isdigit() else None
