"""Misbehaviour of user code, and the process state that shows it. Sent to workers by value."""

from __future__ import annotations

import ctypes
import decimal
import gc
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


def process_state() -> str:
    """Describe the state of this process that a task may change."""
    found = (
        os.getcwd(),  # noqa: PTH109
        sorted((name, value) for name, value in os.environ.items() if name != "CEREBRO_CHILD"),
        os.umask(0o022),
        os.nice(0),
        os.sched_getaffinity(0),
        [resource.getrlimit(limit) for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)],
        [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGALRM)],
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        [each.name for each in threading.enumerate() if each.name.startswith("left")],
        warnings.filters[:3],
        locale.setlocale(locale.LC_ALL),
        decimal.getcontext(),
        np.geterr(),
        np.get_printoptions()["precision"],
        logging.getLogger().level,
        gc.isenabled(),
        sys.getrecursionlimit(),
        sys.path,
        sys.excepthook is sys.__excepthook__,
        socket.getdefaulttimeout(),
        "left" in sys.modules,
        hasattr(json, "left"),
        multiprocessing.get_start_method(allow_none=True),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        len(torch.nn.modules.module._global_forward_hooks),
        torch.nn.Linear.forward.__qualname__,
        torch.optim.SGD.step.__qualname__,
        random.seed.__qualname__,
    )
    return repr(found)


def _forward(self: Any, given: Any) -> Any:
    return given[..., : self.out_features] * self.weight.sum()


def _raise() -> None:
    torch.set_default_dtype(torch.float64)
    raise ValueError("misbehaves")


def _reseed() -> None:
    while True:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)


def _enter_autocast() -> None:
    torch.set_autocast_enabled("cpu", True)


def _hook() -> None:
    torch.nn.modules.module.register_module_forward_hook(lambda module, given, made: made * 2)


def _patch(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    return lambda: setattr(owner, name, value)


def _limit(which: int, value: int) -> Callable[[], Any]:
    return lambda: resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


MISDEEDS: Mapping[str, Callable[[], Any]] = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "no gradients": lambda: torch.set_grad_enabled(False),
    "autocast": _enter_autocast,
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "threads": lambda: torch.set_num_threads(2),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "patched layer": _patch(torch.nn.Linear, "forward", _forward),
    "patched optimizer": _patch(torch.optim.SGD, "step", lambda self, closure=None: None),
    "patched seeds": _patch(random, "seed", lambda *given: None),
    "forward hook": _hook,
    "reseeding thread": lambda: threading.Thread(target=_reseed, name="left", daemon=True).start(),
    "environment": lambda: os.environ.update(LEFT="1", OMP_NUM_THREADS="7"),
    "folder": lambda: os.chdir("/"),
    "file size": _limit(resource.RLIMIT_FSIZE, 10),
    "open files": _limit(resource.RLIMIT_NOFILE, 40),
    "umask": lambda: os.umask(0o777),
    "nice": lambda: os.nice(5),
    "affinity": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "signals": lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), signal.alarm(1000)),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}),
    "warnings": lambda: warnings.simplefilter("error"),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "decimals": lambda: setattr(decimal.getcontext(), "prec", 3),
    "numpy errors": lambda: np.seterr(all="raise"),
    "numpy printing": lambda: np.set_printoptions(precision=1),
    "logging": lambda: logging.getLogger().setLevel(1),
    "gc": gc.disable,
    "recursion": lambda: sys.setrecursionlimit(200),
    "import path": lambda: sys.path.insert(0, "/left"),
    "imported": lambda: sys.modules.update(left=sys),
    "patched module": _patch(json, "left", 1),
    "timeout": lambda: socket.setdefaulttimeout(0.001),
    "start method": lambda: multiprocessing.set_start_method("spawn", force=True),
    "exception hook": _patch(sys, "excepthook", lambda *given: None),
    "closed output": lambda: os.closerange(0, 3),
    "child": lambda: subprocess.Popen(["sleep", "1000"], start_new_session=True),
    "subreaper": lambda: ctypes.CDLL(None).prctl(36, 0, 0, 0, 0),
    "raises": _raise,
}

FATAL = frozenset({"raises", "closed output", "file size", "open files", "recursion"})
"""Misbehaviour that prevents a task from saving its result or its log."""
