"""``cerebro token``, ``quota`` and ``audit``: parse arguments, call the store's API, print tables.

The store checks rights and enforces quotas; nothing is decided here. A new token's secret is printed once, alone on its
line of the standard output, so that a script can store it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cerebro.cli.administration.scale import cluster_client
from cerebro.cli.parsing import amount
from cerebro.cli.text import bytes_of, day, moment, size, table
from cerebro.contract.accounts.quotas import DEFAULT
from cerebro.errors import BadRequestError, validation_summary

if TYPE_CHECKING:
    from cerebro.contract.accounts.identity import TokenRecord, TokenRequest


def register(commands: Any, common: argparse.ArgumentParser, number: Callable[[str], int]) -> None:
    """Add ``token``, ``quota`` and ``audit`` to the subcommands."""
    token = commands.add_parser("token", help="make, list and revoke tokens, where there are users")
    actions = token.add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser(
        "create", parents=[common], help="make a token; it is printed once and never again"
    )
    create.add_argument("--label", default="", metavar="TEXT", help="purpose of the token")
    create.add_argument(
        "--days", type=number, metavar="N", help="days until it expires (default: 90; at most 365)"
    )
    create.add_argument("--scopes", metavar="S,S", help="subset of the role's scopes, such as: read,steer")
    create.add_argument(
        "--for", dest="name", metavar="NAME", help="for admins: the token's owner (default: you)"
    )
    create.add_argument(
        "--role", choices=("viewer", "member", "admin"), help="default: your role; for others: member"
    )
    create.add_argument("--projects", metavar="P,P", help="projects of the token (default: yours)")
    create.set_defaults(run=run_create)
    listed = actions.add_parser("list", parents=[common], help="list your tokens; for admins: all tokens")
    listed.set_defaults(run=run_list)
    revoke = actions.add_parser(
        "revoke", parents=[common], help="end tokens, and the tokens created with them, at once"
    )
    revoke.add_argument("tokens", nargs="+", metavar="ID", help="ids as in `cerebro token list`")
    revoke.set_defaults(run=run_revoke)
    quota = commands.add_parser(
        "quota", parents=[common], help="show quotas and use of projects; for admins: set a quota"
    )
    quota.add_argument(
        "project", nargs="?", metavar="PROJECT", help="or `default`, for projects without a quota"
    )
    quota.add_argument("--open-runs", type=int, metavar="N", help="queued and running runs at a time")
    quota.add_argument("--models", type=int, metavar="N", help="models in one run")
    quota.add_argument("--worker-hours", type=amount, metavar="H", help="device-hours in 30 days")
    quota.add_argument("--bytes", metavar="SIZE", help="size of checkpoints and predictions, such as 200GB")
    quota.add_argument("--none", action="store_true", help="remove the project's quota")
    quota.set_defaults(run=run_quota)
    audit = commands.add_parser(
        "audit",
        parents=[common],
        help="list changes to the cluster: sign-ins, tokens, sizes, deletions, downloads",
    )
    audit.add_argument("--last", type=number, default=50, metavar="N", help="newest entries (default: 50)")
    audit.set_defaults(run=run_audit)


def run_create(options: argparse.Namespace) -> int:
    """Run ``cerebro token create``; return the exit status."""
    created = cluster_client(options.home).make_token(_request(options))
    record = created.record
    owner = f"{record.principal.name}, {record.principal.role}"
    print(
        f"Token {record.id} of {owner}, until {day(record.expires)}. It is shown once: save it as CEREBRO_TOKEN.",
        file=sys.stderr,
    )
    print(created.token)
    return 0


def run_list(options: argparse.Namespace) -> int:
    """Run ``cerebro token list``; return the exit status."""
    rows = [_row(each, time.time()) for each in cluster_client(options.home).tokens()]
    if not rows:
        print("You have no tokens: create one with `cerebro token create`.")
        return 0
    heads = ("TOKEN", "WHOSE", "ROLE", "PROJECTS", "SCOPES", "USED", "ENDS", "FOR")
    print(*table(heads, rows), sep="\n")
    return 0


def run_revoke(options: argparse.Namespace) -> int:
    """Run ``cerebro token revoke``; return the exit status."""
    kvs = cluster_client(options.home)
    for token in options.tokens:
        kvs.revoke_token(token.removeprefix("ck_"))
        print(f"{token} is revoked and stops working within 5 s.")
    return 0


def run_quota(options: argparse.Namespace) -> int:
    """Run ``cerebro quota``; return the exit status."""
    from pydantic import ValidationError

    from cerebro.contract.accounts.quotas import Quota

    kvs = cluster_client(options.home)
    options_given = {name: getattr(options, name) for name in ("open_runs", "models", "worker_hours")}
    options_given["bytes"] = None if options.bytes is None else bytes_of(options.bytes)
    limits = {name: value for name, value in options_given.items() if value is not None}
    if limits or options.none:
        if not options.project or (limits and options.none):
            raise BadRequestError(
                "name a project and its limits or --none, such as: cerebro quota vision --models 100"
            )
        try:
            kvs.set_quota(options.project, Quota.model_validate(limits))
        except ValidationError as cause:
            raise BadRequestError(validation_summary(cause.errors())) from cause
    elif options.project:
        raise BadRequestError(
            "give the project's limits: --open-runs, --models, --worker-hours, --bytes or --none"
        )
    rows = []
    for each in kvs.quotas():
        quota = each.quota or Quota()
        name = each.name if each.is_project or each.name == DEFAULT else f"({each.name})"
        hours = _used_of(round(each.worker_hours, 1), quota.worker_hours)
        stored = f"{size(each.bytes)} of {'any' if quota.bytes is None else size(quota.bytes)}"
        rows.append((name, _used_of(each.open_runs, quota.open_runs), hours, _limit(quota.models), stored))
    if not rows:
        print(
            "No quota is set and no use is counted. Use is counted for experiments with a project and for users "
            'who sign in by name: see "Several users" in the documentation.'
        )
        return 0
    head = ("PROJECT", "OPEN RUNS", "HOURS IN 30 DAYS", "MODELS IN A RUN", "BYTES")
    print(*table(head, rows), sep="\n")
    return 0


def _used_of(used: float, limit: float | None) -> str:
    return f"{used:g} of {_limit(limit)}"


def _limit(limit: float | None) -> str:
    return "any" if limit is None else f"{limit:g}"


def run_audit(options: argparse.Namespace) -> int:
    """Run ``cerebro audit``; return the exit status."""
    entries = cluster_client(options.home).audit(options.last)
    rows = [(moment(e.time), e.by or "-", e.what) for e in entries]
    if not rows:
        print("The audit log is empty. It records sign-ins only where people sign in by name.")
        return 0
    print(*table(("TIME", "WHO", "WHAT"), rows), sep="\n")
    return 0


def _request(options: argparse.Namespace) -> TokenRequest:
    from pydantic import ValidationError

    from cerebro.contract.accounts.identity import TokenRequest

    options_given = {"label": options.label, "days": options.days, "name": options.name, "role": options.role}
    lists = {"projects": options.projects, "scopes": options.scopes}
    split = {
        name: [each for each in text.split(",") if each] for name, text in lists.items() if text is not None
    }
    try:
        return TokenRequest.model_validate({k: v for k, v in options_given.items() if v is not None} | split)
    except ValidationError as cause:
        raise BadRequestError(validation_summary(cause.errors())) from cause


def _row(record: TokenRecord, now: float) -> tuple[str, ...]:
    principal = record.principal
    return (
        record.id,
        principal.name,
        principal.role,
        ",".join(principal.projects) or "-",
        "all" if principal.scopes is None else ",".join(principal.scopes) or "none",
        day(record.used) if record.used else "never",
        "expired" if record.expires <= now else day(record.expires),
        record.label or "-",
    )
