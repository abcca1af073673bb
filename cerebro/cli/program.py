"""The command ``cerebro``: clusters and experiments from the terminal.

Wiring and words only; what it does lives elsewhere and is imported when a command needs it, so that ``cerebro
--help`` answers at once. An error that Cerebro raises on purpose is a line on the terminal and exit status 1;
a traceback is a bug.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from cerebro.cli import cluster as cli_cluster
from cerebro.cli import failed as cli_failed
from cerebro.cli import scale as cli_scale
from cerebro.cli import steer as cli_steer
from cerebro.errors import CerebroError, ClusterError

_INTERRUPTED = 130
_MISUSED = 2
_FOLLOW = ("tail", "-F", "-n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except CerebroError as problem:
        print(f"cerebro: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # `cerebro logs | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _up(options: argparse.Namespace) -> int:
    from cerebro.local import cluster

    if options.foreground:
        return _up_in_foreground(options)
    info = cluster.start(
        options.home,
        workers=options.workers,
        tensorboard=options.tensorboard,
        notebook=options.notebook,
        timeout_s=options.timeout,
    )
    print(f"Cerebro runs at {info.home} with {info.workers} workers.")
    _warn_of_crowd(info.workers)
    print(f"  web page     {info.dispatcher}")
    print(f"  TensorBoard  {info.tensorboard or 'not started'}")
    print(f"  JupyterLab   {info.notebook or 'not started'}")
    print(f"  token        pages and JupyterLab ask for it: cat {info.home}/run/token")
    print("`cerebro status` shows what it does, `cerebro down` ends it.")
    return 0


def _warn_of_crowd(workers: int) -> None:
    from cerebro.cli.text import crowd
    from cerebro.runtime.usage.cores import available

    if warning := crowd(workers, available()):
        print(warning, file=sys.stderr)


def _up_in_foreground(options: argparse.Namespace) -> int:
    from cerebro.local import notebooks
    from cerebro.local.cluster import DEFAULT_WORKERS, notebook_options, version
    from cerebro.local.home import ClusterHome, find_running

    home = ClusterHome(options.home)
    if find_running(home) is not None:
        raise ClusterError(
            f"a cluster runs at {home.path} already: see `cerebro status`, end it with `cerebro down`"
        )
    _warn_of_crowd(options.workers or DEFAULT_WORKERS)
    command = [sys.executable, "-P", "-m", "cerebro.local", "--home", str(home.path), "--version", version()]
    command += ["--workers", str(options.workers or DEFAULT_WORKERS)]
    command += () if options.tensorboard else ("--no-tensorboard",)
    if options.notebook:
        notebooks.require()
    command += notebook_options(options.notebook)
    sys.stdout.flush()
    os.execv(command[0], command)  # Ctrl-C then reaches the supervisor itself


def _down(options: argparse.Namespace) -> int:
    from cerebro.local import cluster
    from cerebro.local.home import ClusterHome

    home = ClusterHome(options.home).path
    print(f"The cluster at {home} has ended." if cluster.stop(home) else f"No cluster runs at {home}.")
    return 0


def _status(options: argparse.Namespace) -> int:
    from cerebro.cli import status as cli_status
    from cerebro.local.home import ClusterHome, find_running

    info, kvs = None, cli_status.remote_client(os.environ) if options.home is None else None
    if kvs is None:
        home = ClusterHome(options.home)
        info = find_running(home)
        if info is None:
            raise ClusterError(f"no local cluster runs at {home.path}: start one with `cerebro up`")
        kvs = cli_status.client(info)
    if options.experiment:
        state, problem = cli_status.load_readable(kvs, options.experiment)
        print(*cli_status.state_lines(state, troubles=kvs.troubles().pods), sep="\n")
        if problem is not None:
            raise problem
        return 0
    if info is not None:
        print(*cli_status.cluster_lines(info), sep="\n", flush=True)
    print(*cli_status.store_lines(kvs), sep="\n")
    return 0 if info is None or cli_status.is_well(info) else 1


def _doctor(options: argparse.Namespace) -> int:
    from cerebro.cli import doctor
    from cerebro.local.home import ClusterHome

    found = []
    for check in doctor.examine(ClusterHome(options.home), os.environ, workers=options.workers):
        found.append(check)
        print(f"{check.verdict:<5} {check.name:<12} {check.message}", flush=True)
        if check.mend:
            print(f"{'':<18} -> {check.mend}", flush=True)
    fails = sum(check.verdict is doctor.Verdict.FAIL for check in found)
    warnings = sum(check.verdict is doctor.Verdict.WARN for check in found)
    print(f"{len(found)} checks: {fails} failed, {warnings} to look at.")
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
        chosen = [path for path in known if path.parent == folder]  # services; tasks have folders
    else:
        chosen = [path for path in known if str(path.relative_to(folder)).removesuffix(".log") == name]
    if chosen:
        return chosen
    names = ", ".join(
        str(path.relative_to(folder)).removesuffix(".log") for path in known if path.parent == folder
    )
    what = f"no log {name!r} in {folder}" if name else f"no logs in {folder}"
    raise ClusterError(f"{what}: " + (f"there are {names}" if names else "no cluster has run there"))


def _replay(options: argparse.Namespace) -> int:
    import importlib

    # By name: replaying trains models, and nothing that trains is to be loaded with the command line.
    replay = importlib.import_module("cerebro.client.replay")
    return int(
        replay.main(
            options.experiment,
            run=options.fit,
            model=options.model,
            home=options.home,
            scratch=options.scratch,
        )
        or 0
    )


def _selftest(options: argparse.Namespace) -> int:
    import importlib

    # By name, as above: it trains.
    trial = importlib.import_module("cerebro.client.selftest.trial")
    return int(trial.run(options.home, timeout_s=options.timeout))


def _schedule(options: argparse.Namespace) -> int:
    from cerebro.cli import schedule as cli_schedule

    try:
        lines = cli_schedule.lines(
            options.instance, policy=options.policy, time_limit=options.time_limit, as_json=options.json
        )
    except CerebroError as problem:  # a mistake in what was given is one in the arguments
        print(f"cerebro schedule: {' '.join(str(problem).split())}", file=sys.stderr)
        return _MISUSED
    print(*lines, sep="\n")
    return 0


def _simulate(options: argparse.Namespace) -> int:
    from cerebro.cli import simulate as cli_simulate

    if options.list:
        print(*cli_simulate.catalogue(), sep="\n")
        return 0
    try:
        for line in cli_simulate.lines(
            options.scenarios,
            policies=options.policy,
            seeds=options.seeds,
            sigma=options.sigma,
            by_core=options.core,
            as_json=options.json,
            pictures=options.svg,
        ):
            print(line, flush=True)
    except CerebroError as problem:
        print(f"cerebro simulate: {' '.join(str(problem).split())}", file=sys.stderr)
        return _MISUSED
    return 0


# --- arguments ----------------------------------------------------------------------------------


class _Version(argparse.Action):
    """Looks the version up only when asked: that reads the metadata of installed packages."""

    def __call__(self, *_: object, **__: object) -> None:
        from cerebro.local.cluster import version

        print(f"cerebro {version()}")
        sys.exit(0)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage is what --help is for."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="cerebro",
        description="Clusters and experiments, from the terminal. docs/commands.md describes the commands.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    common = _Parser(add_help=False)
    common.add_argument(
        "--home", metavar="DIR", help="the cluster's folder (default: $CEREBRO_HOME or ~/.cerebro)"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _register_local(commands, common)
    _register_studies(commands)
    cli_cluster.register(commands)
    cli_scale.register(commands, common, _count)
    cli_failed.register(commands, common)
    cli_steer.register(commands, common)
    return parser


def _register_local(commands: Any, common: argparse.ArgumentParser) -> None:
    """What starts, shows, checks and ends the cluster on this machine."""
    up = commands.add_parser(
        "up", parents=[common], help="start the local cluster, or join the one that runs"
    )
    up.add_argument("--workers", type=_count, metavar="N", help="number of workers (default: 2)")
    up.add_argument(
        "--foreground", action="store_true", help="stay in the foreground; Ctrl-C ends the cluster"
    )
    up.add_argument(
        "--no-tensorboard", dest="tensorboard", action="store_false", help="do not start TensorBoard"
    )
    up.add_argument(
        "--notebook",
        action=argparse.BooleanOptionalAction,
        help="start JupyterLab (default: if it is installed), with Cerebro's notebooks, joined to this cluster",
    )
    up.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds to wait (default: 60)")
    up.set_defaults(run=_up)

    down = commands.add_parser("down", parents=[common], help="end the local cluster; experiments stay")
    down.set_defaults(run=_down)

    status = commands.add_parser("status", parents=[common], help="show services, workers and experiments")
    status.add_argument(
        "experiment", nargs="?", metavar="EXPERIMENT", help="show its runs and models instead"
    )
    status.set_defaults(run=_status)

    doctor = commands.add_parser(
        "doctor", parents=[common], help="check what can be wrong, and say how to fix it"
    )
    doctor.add_argument("--workers", type=_count, metavar="N", help="check for that many workers")
    doctor.set_defaults(run=_doctor)

    logs = commands.add_parser("logs", parents=[common], help="show what services wrote")
    logs.add_argument(
        "service", nargs="?", metavar="SERVICE", help="such as kvs_api or worker-0 (default: all)"
    )
    logs.add_argument(
        "-n", dest="lines", type=_count, default=50, metavar="N", help="lines per log (default: 50)"
    )
    logs.add_argument(
        "-f", dest="follow", action="store_true", help="follow: print what is written from now on, too"
    )
    logs.set_defaults(run=_logs)

    replay = commands.add_parser(
        "replay", parents=[common], help="train again in one process, in the logged order"
    )
    replay.add_argument("experiment", metavar="EXPERIMENT")
    replay.add_argument("--run", dest="fit", metavar="R", help="a fit run (default: the newest finished one)")
    replay.add_argument("--model", metavar="M", help="one model (default: all)")
    replay.add_argument(
        "--scratch",
        metavar="FOLDER",
        help="where training data that this machine lacks is made again; removed afterwards "
        "(default: on the shard volume, or in the user's cache folder)",
    )
    replay.set_defaults(run=_replay)

    selftest = commands.add_parser("selftest", parents=[common], help="try the cluster on a tiny data set")
    selftest.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds in all (default: 600)"
    )
    selftest.set_defaults(run=_selftest)


def _register_studies(commands: Any) -> None:
    """Schedulers without a cluster."""
    schedule = commands.add_parser("schedule", help="schedule models on workers: an instance as JSON")
    schedule.add_argument("instance", metavar="INSTANCE.json", help="a file, or - for standard input")
    schedule.add_argument(
        "--policy", metavar="NAME", help="a dispatch policy, planner, cp-sat or gurobi (default: auto)"
    )
    schedule.add_argument("--time-limit", metavar="SECONDS", help="seconds to search (default: 10)")
    schedule.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    schedule.set_defaults(run=_schedule)

    simulate = commands.add_parser("simulate", help="compare schedulers on named scenarios")
    simulate.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help="default: the thesis's and the paper's"
    )
    simulate.add_argument("--list", action="store_true", help="list the scenarios and exit")
    simulate.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help="a scheduler; may be given several times",
    )
    simulate.add_argument("--seeds", default="1", metavar="N", help="runs of each (default: 1)")
    simulate.add_argument("--sigma", metavar="S", help="noise of unit times, such as 0.1")
    simulate.add_argument("--core", action="store_true", help="dispatch by the controller's own core")
    simulate.add_argument("--json", action="store_true", help="a JSON object per scenario")
    simulate.add_argument("--svg", type=Path, metavar="DIR", help="write Gantt charts to this folder")
    simulate.set_defaults(run=_simulate)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)
