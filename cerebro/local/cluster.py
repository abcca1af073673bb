"""Start, join and stop the local cluster from any process: command line, notebook or test.

`start` launches the supervisor (`cerebro.local.__main__`) in its own session; `scale` and `stop` signal it. This module
keeps no process and no thread. Every function is safe to call twice, and from several processes at once: the
supervisor with the home's lock is the cluster, and other processes join it. Not for clusters on Kubernetes.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cerebro.errors import ClusterError
from cerebro.local import logs, notebooks, requirements
from cerebro.local.announcement import Announcement, receive
from cerebro.local.cleaning import clean
from cerebro.local.home import ClusterHome, ClusterInfo, find_running
from cerebro.local.supervision import processes
from cerebro.local.supervision.processes import ProcessId
from cerebro.local.supervision.supervisor import ENDING, GRACE_S, ClusterState
from cerebro.runtime import numeric_settings
from cerebro.runtime.failure_rule_settings import cluster_rules
from cerebro.runtime.usage import cores
from cerebro.runtime.usage.gpus import Gpu, Gpus

DEFAULT_WORKERS = 2
_SUPERVISOR = ("-P", "-m", "cerebro.local")
_STAGES = 3
"""Number of stages of services; each may use its grace period at the end."""
_LOOK_AGAIN_S = 0.03
"""Seconds between two reads of the cluster's record."""
_LOG_LINES = 15


def version() -> str:
    """Return the installed version of Cerebro."""
    try:
        return importlib.metadata.version("cerebro-platform")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree through PYTHONPATH
        return "unknown"


def join(home: Path | str | None = None) -> ClusterInfo:
    """Return the cluster that runs at `home`, in any state.

    Raises:
        ClusterError: no cluster of this version runs there.
    """
    place = ClusterHome(home)
    info = find_running(place)
    if info is None:
        raise ClusterError(f"no local cluster runs at {place.path}: start one with `cerebro up`")
    _require_fit(info)
    return info


def start(
    home: Path | str | None = None,
    *,
    workers: int | None = None,
    devices: int | None = None,
    tensorboard: bool = True,
    notebook: bool | None = None,
    timeout_s: float = 60.0,
    supervisor: Sequence[str] = _SUPERVISOR,
) -> ClusterInfo:
    """Start a local cluster in the background, or join the running one. Return when it is ready.

    The cluster keeps running when the caller ends. Its services get the caller's object-store and computing
    settings (see `environment`) at the first start.

    Args:
        home: the cluster's folder; by default ``$CEREBRO_HOME`` or ``~/.cerebro``.
        workers: number of workers; by default the running number, or two.
        devices: concurrent sub-epochs per worker, each on a GPU or, without GPUs, on an equal share of its
            cores; by default the running number, ``CEREBRO_DEVICES``, all GPUs, or one.
        tensorboard: True to run TensorBoard. Ignored when joining.
        notebook: True to run JupyterLab; by default if installed. When joining, True adds it and restarts the
            page to link it; other services keep running.
        timeout_s: maximum seconds for the whole start.
        supervisor: arguments of the supervisor's Python, for tests.

    Raises:
        ClusterError: a package is missing, a service does not start (the message ends with its last output), the
            machine has fewer devices, or the running cluster has another version or another number of workers or
            devices.
    """
    if workers is not None and workers < 1:
        raise ClusterError(f"workers is {workers}, expected at least 1")
    options = worker_options(workers, devices)
    if notebook:
        notebooks.require()
    place = ClusterHome(home)
    place.create()
    options += () if tensorboard else ("--no-tensorboard",)
    options += notebook_options(notebook)
    deadline, is_ours = time.monotonic() + timeout_s, False
    try:
        while time.monotonic() < deadline:
            info = find_running(place)
            if info is None:
                if is_ours:  # and has ended already
                    raise _failure(place)
                requirements.require()
                is_ours = True
                is_ours = _launch(place, [*supervisor, *options, *gpu_options()], deadline)
            elif info.state in ENDING:
                processes.wait_gone(info.supervisor, deadline - time.monotonic())
            else:
                _require_fit(info, workers, devices)
                if info.state == ClusterState.READY:
                    is_there = not notebook or info.notebook is not None
                    return info if is_there else _with_notebook(place, info, timeout_s)
                processes.wait_gone(info.supervisor, _LOOK_AGAIN_S)
        raise _too_slow(place, timeout_s)
    except BaseException:  # Ctrl-C included: an interrupted start must leave no half-started cluster
        if is_ours:
            stop(place.path)
        raise


def _with_notebook(place: ClusterHome, info: ClusterInfo, timeout_s: float) -> ClusterInfo:
    place.notebook_request.touch()

    def is_done(found: ClusterInfo) -> bool:
        ready = {service.name for service in found.services if service.state == "ready"}
        return "notebook" in ready and found.state == ClusterState.READY

    found = _signalled(info, is_done, timeout_s)
    if is_done(found):
        return found
    raise ClusterError(
        f"JupyterLab is not ready beside the cluster at {place.path} after {timeout_s:g} s{_tail(place, 'notebook')}"
    )


def scale(home: Path | str | None, workers: int, *, timeout_s: float) -> ClusterInfo:
    """Set the number of workers at `home`. Return when new workers registered and excess workers ended.

    Replicas on an ended worker's volume are unavailable until the worker starts again. Repeated calls with
    the same number are safe.

    Args:
        workers: number of workers, from 1.
        timeout_s: maximum seconds to wait.

    Raises:
        ClusterError: no cluster runs there, or the time ran out.
    """
    info = join(home)
    ClusterHome(info.home).size.write_text(str(workers))

    def is_done(found: ClusterInfo) -> bool:
        return found.workers == workers and all(s.state == "ready" for s in found.services if s.required)

    info = _signalled(info, is_done, timeout_s)
    if is_done(info):
        return info
    late = [service for service in info.services if service.state != "ready"]
    problems = "; ".join(f"{service.name} is {service.state} {service.problem}".rstrip() for service in late)
    raise ClusterError(
        f"the cluster at {info.home} does not have {workers} workers after {timeout_s:g} s "
        f"({problems or 'the reason is not known'}): "
        "see `cerebro status` and `cerebro logs supervisor`"
    )


def _signalled(info: ClusterInfo, is_done: Callable[[ClusterInfo], bool], timeout_s: float) -> ClusterInfo:
    """Signal the supervisor to read its request file, and wait until it is done. Return the record.

    A busy supervisor misses nothing, because the request is in a file and only the notice is a signal.
    """
    processes.send(info.supervisor, signal.SIGUSR1)
    deadline = time.monotonic() + timeout_s
    while True:
        found = find_running(ClusterHome(info.home))
        if found is None:
            raise ClusterError(f"the cluster at {info.home} has just ended: start it with `cerebro up`")
        if is_done(found) or time.monotonic() >= deadline:
            return found
        processes.wait_gone(found.supervisor, _LOOK_AGAIN_S)


def worker_options(workers: int | None, devices: int | None) -> list[str]:
    """Return the supervisor's arguments for the number of workers and devices; `None` uses the defaults.

    Raises:
        ClusterError: this machine does not have as many devices, or a service would refuse a variable of the
            environment (`numeric_settings`).
    """
    numeric_settings.check(os.environ)
    cluster_rules(os.environ)
    number = workers or DEFAULT_WORKERS
    options = ["--workers", str(number)]
    text, name = ("" if devices is None else str(devices)), "devices"
    if devices is None:
        text, name = os.environ.get("CEREBRO_DEVICES", ""), "CEREBRO_DEVICES"
    if not text:
        return options
    if not text.isdecimal() or int(text) < 1:
        raise ClusterError(f"{name} is {text!r}, expected a number of devices for each worker, from 1")
    gpus = len(_gpus())
    most = max(1, gpus // number) if gpus else cores.available()
    if int(text) > most:
        there = f"{gpus} GPU(s) for {number} worker(s)" if gpus else f"{most} processor core(s)"
        raise ClusterError(
            f"{name} is {text}, but this machine has {there}: a worker may have at most {most}"
        )
    return [*options, "--devices", text]


def gpu_options() -> list[str]:
    """Return the supervisor's arguments for this machine's GPUs. It does not load the GPU driver itself."""
    found = ",".join(gpu.uuid for gpu in _gpus())
    return ["--gpus", found] if found else []


def _gpus() -> tuple[Gpu, ...]:
    return Gpus(os.environ.get("CUDA_VISIBLE_DEVICES")).found


def notebook_options(notebook: bool | None) -> list[str]:
    """Return the supervisor's JupyterLab options; `None` runs it if installed."""
    return ["--notebook"] if notebook or (notebook is None and notebooks.is_installed()) else []


def stop(home: Path | str | None = None, *, timeout_s: float = GRACE_S * (_STAGES + 1)) -> bool:
    """End the cluster at `home` and its processes. Return True if anything was ended.

    Args:
        home: the cluster's folder; by default ``$CEREBRO_HOME`` or ``~/.cerebro``.
        timeout_s: maximum seconds for the supervisor; each stage of services may use its grace period.

    Raises:
        ClusterError: some processes cannot be ended.
    """
    place = ClusterHome(home)
    if not place.run.is_dir():
        return False
    info = find_running(place)
    if info is not None:
        _end(info.supervisor, timeout_s)
    lock = place.take_lock()
    if lock is None:  # another process is starting a cluster here
        return info is not None
    try:
        return bool(clean(place)) or info is not None
    finally:
        os.close(lock)


def _end(supervisor: ProcessId, timeout_s: float) -> None:
    for signum, limit_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, GRACE_S)):
        # SIGKILL ends its services too: they are tied to it (`parent_death`).
        if not processes.send(supervisor, signum) or processes.wait_gone(supervisor, limit_s):
            return


def _launch(place: ClusterHome, arguments: Sequence[str], deadline: float) -> bool:
    """Start a supervisor. Return True if it holds the home's lock, False if another one does."""
    read, write = os.pipe()
    options = ["--home", str(place.path), "--background", "--announce", str(write), "--version", version()]
    log = logs.open_log(place.log("supervisor"))
    try:
        subprocess.run(
            [sys.executable, *arguments, *options],
            env=_environment(),
            cwd=place.path,  # not the caller's folder, which could then not be unmounted
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
            start_new_session=True,  # the end of the caller's terminal or kernel must not end the cluster
            check=False,  # a problem is announced, or shows in the log
        )
        os.close(write)
        write = -1
        outcome, message = receive(read, deadline - time.monotonic())
    finally:
        for descriptor in (read, write, log):
            if descriptor >= 0:
                os.close(descriptor)
    if outcome is Announcement.REFUSED:
        raise ClusterError(message)
    if outcome is Announcement.SILENT:
        raise ClusterError(
            f"the supervisor of the local cluster did not start: {message}{_tail(place, 'supervisor')}"
        )
    return outcome is Announcement.RECORDED


def _environment() -> dict[str, str]:
    """Return the caller's environment with absolute module search paths: the supervisor has another working folder."""
    environment = dict(os.environ)
    if found := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(
            str(Path(part).absolute()) for part in found.split(os.pathsep)
        )
    return environment


def _require_fit(info: ClusterInfo, workers: int | None = None, devices: int | None = None) -> None:
    again = "end it with `cerebro down` (its experiments stay), then start again"
    if info.version != version():
        raise ClusterError(
            f"the cluster at {info.home} runs Cerebro {info.version} of {info.python}, this is Cerebro "
            f"{version()} of {sys.executable}: {again}"
        )
    if _series(info.python_version) != _series(platform.python_version()):
        # User code travels as bytecode, which differs from one Python series to the next.
        raise ClusterError(
            f"the cluster at {info.home} runs Python {info.python_version} ({info.python}), this is Python "
            f"{platform.python_version()} ({sys.executable}): use that one, or {again}"
        )
    if workers is not None and info.workers != workers:
        raise ClusterError(
            f"the cluster at {info.home} runs with {info.workers} workers, not {workers}: join it without a "
            f"number, or {again}"
        )
    if devices is not None and info.devices != devices:
        raise ClusterError(
            f"the cluster at {info.home} runs with {info.devices} device(s) for each worker, not {devices}: join it "
            f"without that number, or {again}"
        )


def _series(python_version: str) -> list[str]:
    return python_version.split(".")[:2]


def _failure(place: ClusterHome) -> ClusterError:
    info = place.read()
    if info is None or not info.problem:
        return ClusterError(f"the local cluster at {place.path} was stopped while it started")
    service = info.problem.split()[0]
    return ClusterError(f"the local cluster could not be started: {info.problem}{_tail(place, service)}")


def _too_slow(place: ClusterHome, timeout_s: float) -> ClusterError:
    info = place.read()
    late = [s for s in info.services if s.required and s.state != "ready"] if info else []
    if not late:
        return ClusterError(f"the local cluster at {place.path} was not ready after {timeout_s:g} s")
    first = next((service for service in late if service.state != "waiting"), late[0])
    names = ", ".join(service.name for service in late)
    return ClusterError(
        f"the local cluster was not ready after {timeout_s:g} s: {names} not ready{_tail(place, first.name)}"
    )


def _tail(place: ClusterHome, service: str) -> str:
    path = place.log(service)
    lines = logs.tail(path, _LOG_LINES, last_start=True)
    return "\n".join((f". Its last output, in {path}:", *(f"    {line}" for line in lines))) if lines else ""
