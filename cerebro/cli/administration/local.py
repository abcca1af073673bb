"""``cerebro up``, ``down``, ``status``, ``doctor``, ``logs``: parse arguments and print, for a cluster on this machine.

`cerebro.local` starts and ends clusters, `cerebro.cli.doctor` has the checks. ``status`` and ``doctor`` also show a
cluster elsewhere, named by ``CEREBRO_SERVER``; ``up``, ``down`` and ``logs`` never do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cerebro.cli.parsing import amount
from cerebro.contract.runs import EtlPlan
from cerebro.contract.texts import did_you_mean
from cerebro.errors import ClusterError

_FOLLOW = ("tail", "-F", "-n")


def register(commands: Any, common: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    """Add the commands for the local cluster to the subcommands."""
    up = commands.add_parser("up", parents=[common], help="start the local cluster, or join the running one")
    up.add_argument("--workers", type=count, metavar="N", help="number of workers (default: 2)")
    up.add_argument(
        "--devices",
        type=count,
        metavar="N",
        help="sub-epochs that each worker trains at a time, one on each GPU or share of its cores (default: GPUs, "
        "or 1)",
    )
    up.add_argument(
        "--foreground", action="store_true", help="stay in the foreground; Ctrl-C ends the cluster"
    )
    up.add_argument(
        "--no-tensorboard", dest="tensorboard", action="store_false", help="do not start TensorBoard"
    )
    up.add_argument(
        "--notebook",
        action=argparse.BooleanOptionalAction,
        help="start JupyterLab with Cerebro's notebooks (default: if it is installed)",
    )
    up.add_argument("--timeout", type=amount, default=60.0, metavar="S", help="seconds to wait (default: 60)")
    up.set_defaults(run=_up)

    down = commands.add_parser("down", parents=[common], help="end the local cluster and keep experiments")
    down.set_defaults(run=_down)

    status = commands.add_parser("status", parents=[common], help="show services, workers and experiments")
    status.add_argument(
        "experiment", nargs="?", metavar="EXPERIMENT", help="show the runs and models of this experiment"
    )
    status.add_argument(
        "--top",
        type=count,
        metavar="N",
        help="of an experiment: most models, the best first (default: 20; with --json: all)",
    )
    status.add_argument("--json", action="store_true", help="one JSON object, for programs")
    status.set_defaults(run=_status)

    doctor = commands.add_parser(
        "doctor", parents=[common], help="check the machine, and say how to fix problems"
    )
    doctor.add_argument("--workers", type=count, metavar="N", help="check for that many workers")
    doctor.set_defaults(run=_doctor)

    logs = commands.add_parser("logs", parents=[common], help="show logs of services")
    logs.add_argument(
        "service", nargs="?", metavar="SERVICE", help="such as kvs_api or worker-0 (default: all)"
    )
    logs.add_argument(
        "-n", dest="lines", type=count, default=50, metavar="N", help="lines per log (default: 50)"
    )
    logs.add_argument("-f", dest="follow", action="store_true", help="follow: also print new lines")
    logs.set_defaults(run=_logs)


def _up(options: argparse.Namespace) -> int:
    from cerebro.cli.administration.web_page import sign_in_lines
    from cerebro.cli.text import counted, detail
    from cerebro.local import cluster

    if options.foreground:
        return _up_in_foreground(options)
    info = cluster.start(
        options.home,
        workers=options.workers,
        devices=options.devices,
        tensorboard=options.tensorboard,
        notebook=options.notebook,
        timeout_s=options.timeout,
    )
    each = f", {info.devices} devices each" if info.devices > 1 else ""
    print(f"Cerebro runs at {info.home} with {counted(info.workers, 'worker')}{each}.")
    _warn_if_crowded(info.workers, info.devices)
    print(detail("web page", info.dispatcher))
    print(detail("TensorBoard", info.tensorboard or "not started"))
    print(detail("JupyterLab", info.notebook or "not started"))
    print(*sign_in_lines(info), sep="\n")
    print(detail("token", f"for JupyterLab and programs: cat {info.home}/run/token"))
    print("See it with `cerebro status`, end it with `cerebro down`.")
    return 0


def _warn_if_crowded(workers: int, devices: int) -> None:
    from cerebro.cli.text import crowd, warn
    from cerebro.runtime.usage.cores import available

    if warning := crowd(workers, available(), devices):
        warn(warning)


def _up_in_foreground(options: argparse.Namespace) -> int:
    from cerebro.local import notebooks, requirements
    from cerebro.local.cluster import DEFAULT_WORKERS, gpu_options, notebook_options, version, worker_options
    from cerebro.local.home import ClusterHome, find_running

    home = ClusterHome(options.home)
    if find_running(home) is not None:
        raise ClusterError(
            f"a cluster runs at {home.path} already: see `cerebro status`, end it with `cerebro down`"
        )
    requirements.require()
    wanted = worker_options(options.workers, options.devices)
    _warn_if_crowded(options.workers or DEFAULT_WORKERS, options.devices or 1)
    command = [sys.executable, "-P", "-m", "cerebro.local", "--home", str(home.path), "--version", version()]
    command += [*wanted, *gpu_options()]
    command += () if options.tensorboard else ("--no-tensorboard",)
    if options.notebook:
        notebooks.require()
    command += notebook_options(options.notebook)
    sys.stdout.flush()
    os.execv(command[0], command)  # Ctrl-C then reaches the supervisor itself.


def _down(options: argparse.Namespace) -> int:
    from cerebro.local import cluster
    from cerebro.local.home import ClusterHome

    home = ClusterHome(options.home).path
    print(f"The cluster at {home} has ended." if cluster.stop(home) else f"No cluster runs at {home}.")
    return 0


def _data_warning(home: str | None, plan: EtlPlan) -> str:
    """Return a line about the warnings of a data set; an empty text without any."""
    from cerebro.client.connection import connect
    from cerebro.client.results import warning_line

    return warning_line(plan, connect(home=home, start=False).files)


def _status(options: argparse.Namespace) -> int:
    from cerebro.cli.administration import cluster_status as cli_status
    from cerebro.cli.experiments.status import print_experiment
    from cerebro.local.home import ClusterHome, find_running

    info, kvs = None, cli_status.remote_client(os.environ) if options.home is None else None
    if kvs is None:
        home = ClusterHome(options.home)
        info = find_running(home)
        if info is None:
            raise ClusterError(f"no local cluster runs at {home.path}: start one with `cerebro up`")
        kvs = cli_status.client(info)
    if options.experiment:
        print_experiment(
            kvs,
            options.experiment,
            is_json=options.json,
            top=options.top,
            data_warning=partial(_data_warning, options.home),
        )
        return 0
    if options.top:
        raise ClusterError("--top needs an experiment: cerebro status EXPERIMENT --top N")
    if options.json:
        local = {"cluster": cli_status.services_json(info)} if info is not None else {}
        print(json.dumps(local | cli_status.store_json(kvs), indent=2))
        return 0 if info is None or info.state == "ready" else 1
    if info is not None:
        print(*cli_status.cluster_lines(info), sep="\n", flush=True)
    print(*cli_status.store_lines(kvs), sep="\n")
    return 0 if info is None or info.state == "ready" else 1


def _doctor(options: argparse.Namespace) -> int:
    from cerebro.cli import doctor
    from cerebro.local.home import ClusterHome

    verdicts = []
    for name, found in doctor.examine(ClusterHome(options.home), os.environ, workers=options.workers):
        verdicts.append(found.verdict)
        print(f"{found.verdict:<5} {name:<12} {found.message}", flush=True)
        if found.remedy:
            print(f"{'':<18} -> {found.remedy}", flush=True)
    fails, warnings = verdicts.count(doctor.Verdict.FAIL), verdicts.count(doctor.Verdict.WARN)
    print(f"{len(verdicts)} checks: {fails} failed, {warnings} with warnings.")
    return 1 if fails else 0


def _logs(options: argparse.Namespace) -> int:
    from cerebro.local import logs
    from cerebro.local.home import ClusterHome

    files = _log_files(ClusterHome(options.home).logs, options.service)
    if options.follow:
        sys.stdout.flush()
        os.execvp(_FOLLOW[0], [*_FOLLOW, str(options.lines), *map(str, files)])
    for path in files:
        if len(files) > 1:
            print(f"==> {path} <==")
        print(*logs.tail(path, options.lines), sep="\n")
    return 0


def _log_files(folder: Path, name: str | None) -> list[Path]:
    known = sorted(folder.rglob("*.log"))
    if name is None:
        chosen = [path for path in known if path.parent == folder]  # Services; tasks have folders.
    else:
        chosen = [path for path in known if str(path.relative_to(folder)).removesuffix(".log") == name]
    if chosen:
        return chosen
    names = [str(path.relative_to(folder)).removesuffix(".log") for path in known if path.parent == folder]
    problem = f"no log {name!r} in {folder}" if name else f"no logs in {folder}"
    listed = f"; there are {', '.join(names)}" if names else "; no cluster has run there"
    raise ClusterError(f"{problem}{did_you_mean(name or '', names) or listed}")
