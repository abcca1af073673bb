"""``cerebro notify``: add, list, test and remove notification targets.

The store checks rights, the controller sends (`controller.notifications`). Addresses are printed without their secrets.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.cli.text import moment, table
from cerebro.errors import BadRequestError, ClusterError, validation_summary

if TYPE_CHECKING:
    from cerebro.contract.stored.notifications import NotificationTarget, TargetStatus

_TEST_S = 60.0
"""Seconds to wait for the result of a test message."""
_POLL_S = 0.5


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``notify`` to the subcommands."""
    notify = commands.add_parser("notify", help="send messages about runs to Slack, mail or other services")
    actions = notify.add_subparsers(required=True, metavar="ACTION")
    add = actions.add_parser("add", parents=[common], help="add a target of messages")
    add.add_argument(
        "url",
        metavar="URL",
        help="the service's address as of apprise, such as slack://... or mailto://...; - reads it from standard input",
    )
    add.add_argument(
        "--for",
        dest="events",
        metavar="EVENTS",
        help="events, separated by commas: finished, failed, paused, deadline, quarantine (default: all)",
    )
    covered = add.add_mutually_exclusive_group()
    covered.add_argument(
        "--project", default="", metavar="P", help="report runs of this project (default: your runs)"
    )
    covered.add_argument("--all", action="store_true", help="for admins: report all runs, and workers")
    add.set_defaults(run=run_add)
    listed = actions.add_parser("list", parents=[common], help="list targets, results and errors")
    listed.set_defaults(run=run_list)
    remove = actions.add_parser("remove", parents=[common], help="remove targets")
    remove.add_argument("targets", nargs="+", metavar="ID", help="ids as in `cerebro notify list`")
    remove.set_defaults(run=run_remove)
    test = actions.add_parser("test", parents=[common], help="send a test message and print the result")
    test.add_argument("target", metavar="ID", help="id as in `cerebro notify list`")
    test.set_defaults(run=run_test)


def run_add(options: argparse.Namespace) -> int:
    """Run ``cerebro notify add``; return the exit status."""
    from pydantic import ValidationError

    from cerebro.contract.stored.notifications import TargetRequest

    url = sys.stdin.readline().strip() if options.url == "-" else options.url
    values: dict[str, Any] = {"url": url, "project": options.project, "covers_cluster": options.all}
    if options.events is not None:
        values["events"] = [each.strip() for each in options.events.split(",") if each.strip()]
    try:
        request = TargetRequest.model_validate(values)
    except ValidationError as cause:
        raise BadRequestError(validation_summary(cause.errors(include_input=False))) from None
    target = cluster_client(options.home).add_notification(request)
    print(
        f"{target.id} reports {', '.join(target.events)} of {_covered(target)} to {target.address}. "
        f"Send a test message: cerebro notify test {target.id}"
    )
    return 0


def run_list(options: argparse.Namespace) -> int:
    """Run ``cerebro notify list``; return the exit status."""
    from cerebro.contract.stored.notifications import TargetStatus

    answer = cluster_client(options.home).notifications()
    if not answer.targets:
        print("There are no notification targets: add one with `cerebro notify add URL`.")
        return 0
    rows = [_row(each, answer.statuses.get(each.id, TargetStatus())) for each in answer.targets]
    heads = ("TARGET", "TO", "RUNS", "EVENTS", "WHOSE", "SENT", "LAST", "FAILED", "ERROR")
    print(*table(heads, rows), sep="\n")
    return 0


def run_remove(options: argparse.Namespace) -> int:
    """Run ``cerebro notify remove``; return the exit status."""
    kvs = cluster_client(options.home)
    for target in options.targets:
        kvs.remove_notification(target)
        print(f"{target} is removed.")
    return 0


def run_test(options: argparse.Namespace) -> int:
    """Run ``cerebro notify test``; return the exit status."""
    kvs = cluster_client(options.home)
    target = kvs.test_notification(options.target)
    until = time.monotonic() + _TEST_S
    while time.monotonic() < until:
        status = kvs.notifications().statuses.get(target.id)
        if status is not None and status.tested >= target.tested:
            if status.error:
                raise ClusterError(f"{target.id} did not get the test message: {status.error}")
            print(f"{target.address} got the test message of {target.id}.")
            return 0
        time.sleep(_POLL_S)
    raise ClusterError(
        f"no result of the test message for {target.id} after {_TEST_S:g} s: the controller sends it; see "
        "`cerebro notify list` and `cerebro logs controller`"
    )


def _row(target: NotificationTarget, status: TargetStatus) -> tuple[str, ...]:
    last = moment(status.last) if status.last else "never"
    return (
        target.id,
        target.address,
        _covered(target),
        ",".join(target.events),
        target.author or "-",
        str(status.sent),
        last,
        str(status.failed),
        status.error or "-",
    )


def _covered(target: NotificationTarget) -> str:
    return {"own": "own runs", "project": f"project {target.project}", "cluster": "all runs"}[target.coverage]
