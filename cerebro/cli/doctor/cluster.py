"""Checks of ``cerebro doctor`` on the cluster: token, socket, ports, processes, services, workers, experiments.

Checks of files, ports and processes are for the local cluster only. `threads`, `machines` and `experiments` read the
store, also of a cluster in ``CEREBRO_SERVER``. Nothing is changed.
"""

from __future__ import annotations

import os
import stat
import time

from cerebro.cli.administration.cluster_status import client, remote_client
from cerebro.cli.doctor.check import Case, Finding, fail, ok, warn
from cerebro.errors import CerebroError, ClusterError
from cerebro.local import cleaning, cluster
from cerebro.local.home import LONGEST_SOCKET_PATH, ClusterInfo, ServiceInfo
from cerebro.local.supervision import ports, processes, readiness
from cerebro.local.supervision.services import health_port
from cerebro.local.supervision.supervisor import ClusterState
from cerebro.runtime.usage.cores import crowded
from cerebro.state.worker_quarantine import health_words

_MANY_RESTARTS = 5
"""Restarts of a working service from which on to warn."""


def token(case: Case) -> Finding:
    """Check that only the owner can read the token."""
    path = case.home.token_file
    if not path.exists():
        return ok("the first start creates it")
    found = path.stat()
    if found.st_uid != os.getuid():
        return fail(f"{path} belongs to another user", "use a home of your own: --home or CEREBRO_HOME")
    if stat.S_IMODE(found.st_mode) & 0o077:
        return fail(f"other users can read {path}", f"chmod 600 {path}")
    if not path.read_text().strip():
        return fail(f"{path} is empty", f"cerebro down; rm {path}; cerebro up")
    return ok(f"in {path}, readable by you only")


def database_socket(case: Case) -> Finding:
    """Check the path of the database's socket and its folder."""
    path = case.home.socket
    if path.parent == case.home.run:
        return ok(str(path))
    if path.parent.exists() or path.parent.is_symlink():
        found = path.parent.lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            return fail(f"{path.parent} was created by another user", "use a home with a shorter path")
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        return fail(f"even the short path {path} is too long", "set TMPDIR to a short folder: /tmp")
    return ok(f"{path}, because the home's path is too long for a socket")


def addresses(case: Case) -> Finding:
    """Check that the ports of the last start are free."""
    last = case.home.read()
    if case.info is not None:
        return ok(", ".join(f"{name} {port}" for name, port in case.info.ports.items()))
    if last is None:
        return ok(f"the first start chooses them on {ports.HOST}")
    taken = {name: port for name, port in last.ports.items() if not ports.is_free(port)}
    if taken:
        return warn(
            f"other programs listen on {taken}: the addresses will change",
            "end these programs if you want the old addresses",
        )
    return ok(", ".join(f"{name} {port}" for name, port in last.ports.items()))


def leftovers(case: Case) -> Finding:
    """Check that no process of an earlier cluster runs."""
    if case.info is None:
        processes_left = cleaning.leftovers(case.home)
    else:
        processes_left = processes.orphans(case.home.path, case.info.supervisor.pid)
    if processes_left:
        pids = ", ".join(str(process.pid) for process in processes_left)
        return warn(f"processes of an earlier cluster run: {pids}", "cerebro down ends them")
    return ok("none")


def running(case: Case) -> Finding:
    """Check that a cluster of this version runs."""
    info = case.info
    if info is None:
        last = case.home.read()
        if last is not None and last.state == ClusterState.FAILED:
            return warn(f"the last start failed: {last.problem}", "cerebro up, then cerebro logs")
        return ok("none runs: `cerebro up` starts one, and so does the first Experiment(...)")
    try:
        cluster.join(case.home.path)
    except ClusterError as problem:
        return fail(str(problem), "cerebro down && cerebro up")
    if info.state != ClusterState.READY:
        return fail(f"is {info.state} {info.problem}".strip(), "see the services below")
    return ok(f"runs with {info.workers} workers: {info.dispatcher}")


def service(case: Case, found: ServiceInfo) -> Finding:
    """Check that a service of the running cluster answers."""
    logs = f"cerebro logs {found.name}"
    judge = fail if found.required else warn
    if found.process is None or not processes.is_alive(found.process):
        return judge(f"does not run: {found.problem or found.state}", logs)
    if found.state != "ready":
        return judge(f"runs, but is not ready {found.problem}".strip(), logs)
    if case.info is not None and not _answers(case.info, found.name):
        return judge(f"runs (pid {found.process.pid}), but does not answer", f"{logs}; cerebro down")
    if found.restarts >= _MANY_RESTARTS:
        return warn(f"works, but was restarted {found.restarts} times", logs)
    return ok("works")


_HEALTH = {"tensorboard": "/live", "notebook": "/api"}
"""Paths of other projects' services that answer without a token."""


def _answers(info: ClusterInfo, name: str) -> bool:
    """Return True if a service answers the supervisor's start check."""
    if name == "redis":
        return readiness.redis(info.socket)()
    port = info.ports[name if name in info.ports else health_port(name)]
    return readiness.http(port, _HEALTH.get(name, "/health"))()


def threads(case: Case) -> Finding:
    """Check that workers use no more threads than their machines have cores."""
    is_remote = case.info is None
    try:
        kvs = client(case.info) if case.info else remote_client(case.environment)
        if kvs is None:
            return ok("no cluster runs")
        found = [status for status in kvs.workers() if not status.is_lost]
    except CerebroError as problem:
        return fail(f"the cluster's workers cannot be listed: {problem}", "cerebro status")
    if lines := crowded(found):
        return warn(f"{'; '.join(lines)}: they slow each other down", _FEWER[is_remote])
    return ok(f"{len(found)} worker(s) with no more threads than their machines have cores")


def machines(case: Case) -> Finding:
    """Check that no worker is quarantined, or slower than others of its kind."""
    try:
        kvs = client(case.info) if case.info else remote_client(case.environment)
        if kvs is None:
            return ok("no cluster runs")
        statuses, health = kvs.workers(), kvs.workers_health()
    except CerebroError as problem:
        return fail(f"the health of the cluster's workers cannot be read: {problem}", "cerebro status")
    found = health_words(statuses, health, time.time())
    problems = [f"{worker} is {words}" for worker, words in found.items() if words]
    if problems:
        return warn(
            "; ".join(problems), "cerebro check WORKER, then cerebro release WORKER once it is repaired"
        )
    checked = sum(each.check is not None and each.check.ended is not None for each in health.workers.values())
    return ok(f"no worker is quarantined; {checked} of {len(statuses)} were checked")


def experiments(case: Case) -> Finding:
    """Check that no experiment is quarantined."""
    try:
        kvs = client(case.info) if case.info else remote_client(case.environment)
        if kvs is None:
            return ok("no cluster runs")
        found = kvs.experiments()
    except CerebroError as problem:
        return fail(f"the cluster's experiments cannot be listed: {problem}", "cerebro status")
    problems = [
        f"{e.experiment.name} is quarantined: {e.unreadable.reason}"
        for e in found
        if e.unreadable is not None
    ]
    if problems:
        return warn("; ".join(problems), "upgrade what its page names, then cerebro restore EXPERIMENT")
    return ok(f"none of {len(found)} experiments is quarantined")


def notifications(case: Case) -> Finding:
    """Check that notifications arrive."""
    try:
        kvs = client(case.info) if case.info else remote_client(case.environment)
        if kvs is None:
            return ok("no cluster runs")
        found = kvs.notifications()
    except CerebroError as problem:
        return fail(f"the notification targets cannot be listed: {problem}", "cerebro status")
    problems = [f"{name}: {status.error}" for name, status in found.statuses.items() if status.error]
    if problems:
        return warn("; ".join(problems), "cerebro notify test ID, or cerebro notify remove ID")
    return ok(f"{len(found.targets)} targets, no failed attempt" if found.targets else "no targets")


_FEWER = {
    False: "fewer workers: cerebro scale --workers N",
    True: "give workers fewer threads or request more cores (worker.cores, worker.resources.worker.requests.cpu), or "
    "place fewer on a node (worker.replicas, worker.topologySpreadConstraints)",
}
"""Remedies, by whether the cluster is remote."""
