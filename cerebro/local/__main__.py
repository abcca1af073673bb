"""Supervisor program of a local cluster: ``python -m cerebro.local --home DIR --workers N ...``.

`cerebro.local.cluster.start` and ``cerebro up --foreground`` run it. It takes the home's lock, reserves ports and hands
the list of services to `Supervisor`. With ``--announce FD`` it writes one `Announcement` line about its start to that
descriptor.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cerebro.errors import CerebroError
from cerebro.local import notebooks
from cerebro.local.announcement import Announcement, announce
from cerebro.local.cleaning import clean, remove_socket
from cerebro.local.home import ClusterHome, ClusterInfo
from cerebro.local.supervision.ports import reserve
from cerebro.local.supervision.processes import identify
from cerebro.local.supervision.services import Service, ServiceOptions, services
from cerebro.local.supervision.supervisor import GRACE_S, ClusterState, Supervisor

Builder = Callable[
    [ServiceOptions, ClusterHome, Mapping[str, int], Path, Mapping[str, str]], Sequence[Service]
]
"""Makes the list of services, as `services.services` does; tests give another one."""


def main(
    arguments: Sequence[str] | None = None, *, build: Builder = services, grace_s: float = GRACE_S
) -> int:
    """Run a local cluster until a signal stops it. Return the exit status, 0 after a requested stop.

    Tests pass another `build` (list of services) and a shorter `grace_s`.
    """
    options = _parser().parse_args(arguments)
    home = ClusterHome(options.home)
    if options.background and os.fork() > 0:
        os._exit(0)  # the launcher collects this process; the supervisor becomes a child of init
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        home.create()
        if home.take_lock() is None:
            announce(options.announce, Announcement.BUSY)
            return (
                0
                if options.background
                else _refuse(f"a cluster already runs at {home.path}: see `cerebro status`")
            )
        return _supervise(home, options, build, grace_s)
    except CerebroError as problem:
        announce(options.announce, Announcement.REFUSED, str(problem))
        return _refuse(str(problem))


def _supervise(home: ClusterHome, options: argparse.Namespace, build: Builder, grace_s: float) -> int:
    for process in clean(home):
        logging.getLogger(__name__).warning("ended process %s of an earlier cluster", process.pid)
    home.scratch.mkdir(mode=0o700, exist_ok=True)
    for request in (home.size, home.notebook_request):
        request.unlink(missing_ok=True)  # of an earlier cluster
    chosen = ServiceOptions(
        workers=options.workers,
        tensorboard=options.tensorboard,
        notebook=options.notebook,
        devices=options.devices,
        gpus=tuple(filter(None, options.gpus.split(","))),
    )
    if chosen.notebook:
        notebooks.place(home.notebooks)
    previous = home.read()
    reserved = reserve(chosen.listening, previous=previous.ports if previous else {}, seed=home.key)
    ports = {name: port.number for name, port in reserved.items()}
    socket = home.prepare_socket()
    me = identify(os.getpid())
    assert me is not None, "a process that runs can be identified"
    info = ClusterInfo(
        home=home.path,
        state=str(ClusterState.STARTING),
        version=options.version,
        python=sys.executable,
        python_version=platform.python_version(),
        supervisor=me,
        since=time.time(),
        workers=chosen.workers,
        devices=chosen.devices or chosen.most_devices,
        ports=ports,
        socket=socket,
    )
    listed = build(chosen, home, ports, socket, os.environ)
    share = chosen.cores

    def for_workers(number: int) -> Sequence[Service]:
        nonlocal share
        has_notebook = chosen.notebook or home.notebook_request.exists()
        resized = replace(chosen, workers=number, notebook=has_notebook, share=share)
        share = resized.cores
        if resized.notebook:
            notebooks.place(home.notebooks)
        # Ended workers keep theirs, because they may return.
        missing = [name for name in resized.listening if name not in ports]
        for name, port in reserve(missing, previous=ports, seed=home.key).items():
            reserved[name] = port
            ports[name] = port.number
        return build(resized, home, ports, socket, os.environ)

    state = Supervisor(
        home, listed, info, on_record=_Watcher(options).observe, grace_s=grace_s, for_workers=for_workers
    ).run()
    remove_socket(home, socket)
    return 0 if state is ClusterState.STOPPED else 1


class _Watcher:
    """Reports the start to the launcher: by the announcement, or on the terminal in the foreground."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._announced = self._greeted = False

    def observe(self, info: ClusterInfo) -> None:
        if not self._announced:
            self._announced = True
            announce(self._options.announce, Announcement.RECORDED)
        if not self._greeted and not self._options.background and info.state == ClusterState.READY:
            self._greeted = True
            sys.stdout.write(
                f"Ready: web page {info.dispatcher}, TensorBoard {info.tensorboard or 'not started'}, "
                f"JupyterLab {info.notebook or 'not started'}. "
            )
            sys.stdout.write("Ctrl-C ends the cluster.\n")
            sys.stdout.flush()


def _refuse(message: str) -> int:
    sys.stderr.write(f"cerebro: {message}\n")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cerebro.local", description=__doc__)
    parser.add_argument("--home", help="the cluster's folder")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--devices", type=int, default=None)
    parser.add_argument("--gpus", default="", help="of the machine, by identity")
    parser.add_argument("--no-tensorboard", dest="tensorboard", action="store_false")
    parser.add_argument("--notebook", action="store_true")
    parser.add_argument("--background", action="store_true", help="leave the process that started it")
    parser.add_argument("--announce", type=int, default=-1, metavar="FD")
    parser.add_argument("--version", default="", help="of Cerebro, as the record says it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
