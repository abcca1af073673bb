"""The results of a model don't depend on the models that ran before it on a worker."""

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
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cerebro.contract.events import TaskCommitted
from cerebro.contract.tasks import EvaluateTask, Position, TaskBody, TaskResult, TrainTask
from cerebro.spec import SubEpochSpec
from cerebro.worker.training import checkpoint as checkpoints
from tests.forking import Forks
from tests.state.stories import DATASET
from tests.worker.agent.agents import Agents, agent_forks
from tests.worker.training.handlers import volumes_in, write_split

CACHE: dict[str, int] = {}
"""A global of the user's module."""


def state_of(spec: Watchful) -> str:
    """State of this process that a task may change, as text."""
    found = (
        os.getcwd(),  # noqa: PTH109
        sorted(os.environ.items()),
        os.umask(0o022),
        os.nice(0),
        os.sched_getaffinity(0),
        [resource.getrlimit(which) for which in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)],
        [str(signal.getsignal(which)) for which in (signal.SIGTERM, signal.SIGUSR2, signal.SIGALRM)],
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
        dict(CACHE),
        Watchful.scale,
        spec.seen,
    )
    return repr(found)


def _forward(self: Any, given: Any) -> Any:
    return given[..., : self.out_features] * 0.0


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
    "global": lambda: CACHE.update(left=1),
    "class attribute": lambda: setattr(Watchful, "scale", 3.0),
    "closed output": lambda: os.closerange(0, 3),
    "child": lambda: subprocess.Popen(["sleep", "1000"], start_new_session=True),
    "subreaper": lambda: ctypes.CDLL(None).prctl(36, 0, 0, 0, 0),
    "raises": _raise,
}


class Watchful(SubEpochSpec):
    """A small network with dropout, which reports the state of its process. Some models misbehave."""

    scale = 1.0

    def __init__(self) -> None:
        self.seen = 0

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        made = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
        return [made]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        state = state_of(self)
        print(state)  # noqa: T201 - shows what differs
        (network,) = models
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        checkpoint.track(optimizer=optimizer)
        for inputs, labels in dataloader:
            loss = torch.nn.functional.cross_entropy(network(inputs), labels) * self.scale
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        CACHE["units"] = CACHE.get("units", 0) + 1
        self.seen += 1
        if misdeed := hyperparams["misdeed"]:
            MISDEEDS[misdeed]()
        return {"state": float(zlib.crc32(state.encode()))}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        total = sum(float(models[0](inputs).sum()) for inputs, _ in dataloader)
        state = state_of(self)
        if misdeed := hyperparams["misdeed"]:
            MISDEEDS[misdeed]()
        return {"total": total, "state": float(zlib.crc32(state.encode()))}


class Worker:
    """One worker, one partition, and units of models that behave or do not."""

    def __init__(self, agents: Agents, root: Path) -> None:
        self.agents, self.volumes = agents, volumes_in(root)
        self._count = 0
        write_split(self.volumes, "train", 1)
        self.code = agents.learn(Watchful())
        agents.start(handler="model_hopper")

    def train(self, misdeed: str = "") -> str:
        """Give a unit of a new model; returns its key."""
        self._count += 1
        body = TrainTask(
            key=f"fit-{self._count}/train/m00/e1/p0",
            run=f"fit-{self._count}",
            hyperparams={"batch_size": 8, "misdeed": misdeed},
            epoch=1,
            partition=0,
            unit=0,
            position=Position(epochs=1, units=1, step=0, total_steps=8),
            checkpoint=None,
            **self._common,
        )
        return self._give(body)

    def evaluate(self, trained: TaskResult, misdeed: str = "") -> str:
        """Give an evaluation of a trained model; returns its key."""
        self._count += 1
        assert trained.checkpoint is not None
        body = EvaluateTask(
            kind="valid",
            key=f"fit-{self._count}/valid/m00/e1",
            run=f"fit-{self._count}",
            hyperparams={"batch_size": 8, "misdeed": misdeed},
            checkpoint=trained.checkpoint,
            epoch=1,
            split="train",
            partitions=(0,),
            **self._common,
        )
        return self._give(body)

    @property
    def _common(self) -> dict[str, Any]:
        common = {"experiment": "one", "model": "m00", "code": self.code, "dataset": DATASET}
        return common | {"seed": 5, "hang_timeout_s": 60.0}

    def _give(self, body: TaskBody) -> str:
        self.agents.assign(body, attempt=1, devices=(0,))
        return body.key

    def result(self, key: str) -> TaskResult:
        event = self.agents.end_of(key)
        assert isinstance(event, TaskCommitted), event
        return event.result

    def computed(self, key: str) -> tuple[Mapping[str, float], list[bytes]]:
        """Metrics and weights of a sub-epoch, to the bit."""
        result = self.result(key)
        assert result.checkpoint is not None
        state = checkpoints.load(self.volumes.checkpoints, result.checkpoint, "cpu")
        return result.metrics, [weight.numpy().tobytes() for weight in state["models"][0].values()]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """One process that has imported torch, for all workers."""
    with agent_forks("model_hopper.handler") as made:
        yield made


@pytest.fixture
def worker(agents: Agents, tmp_path: Path) -> Worker:
    return Worker(agents, tmp_path)


@pytest.mark.slow
def test_no_model_meets_what_another_one_did_to_its_process(worker: Worker) -> None:
    """A sub-epoch queued behind a misbehaving model has the same results as in a new process."""
    wanted, met = worker.computed(worker.train()), []
    for misdeed in MISDEEDS:
        worker.train(misdeed)
        if worker.computed(worker.train()) != wanted:
            met.append(misdeed)
    assert met == []


def test_no_evaluation_meets_what_another_one_did_to_its_process(worker: Worker) -> None:
    """As of units; after units as well."""
    trained = worker.result(worker.train())
    wanted = worker.result(worker.evaluate(trained)).metrics
    for misdeed in ("default dtype", "patched layer", "global", "class attribute"):
        worker.result(worker.evaluate(trained, misdeed))
        worker.train(misdeed)
        assert worker.result(worker.evaluate(trained)).metrics == wanted
