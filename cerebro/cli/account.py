"""``cerebro token``, ``quota`` and ``audit``: tokens of people and programs; what projects may have; what was done.

A secret is printed once, alone on its line of the standard output, so that a script can keep it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cerebro.cli.scale import cluster_client
from cerebro.cli.text import bytes_of, size, table
from cerebro.contract.quotas import DEFAULT
from cerebro.errors import BadRequestError, validation_summary

if TYPE_CHECKING:
    from cerebro.contract.identity import TokenRecord, TokenRequest

_DAY_S = 86_400


def register(commands: Any, common: argparse.ArgumentParser, number: Callable[[str], int]) -> None:
    """Add both to the subcommands of ``cerebro``."""
    token = commands.add_parser("token", help="make, list and revoke tokens, where there are users")
    actions = token.add_subparsers(required=True, metavar="ACTION")
    create = actions.add_parser(
        "create", parents=[common], help="make a token; it is printed once and never again"
    )
    create.add_argument("--label", default="", metavar="TEXT", help="what it is for")
    create.add_argument(
        "--days", type=number, metavar="N", help="how long it is valid (default: 90; at most 365)"
    )
    create.add_argument(
        "--scopes", metavar="S,S", help="only these of its role's scopes, such as: read,steer"
    )
    create.add_argument(
        "--for", dest="name", metavar="NAME", help="an admin's: whose it is (default: your own)"
    )
    create.add_argument(
        "--role", choices=("viewer", "member", "admin"), help="default: your own; of others: member"
    )
    create.add_argument("--projects", metavar="P,P", help="projects that it is in (default: your own)")
    create.set_defaults(run=run_create)
    listed = actions.add_parser("list", parents=[common], help="list your tokens; an admin's: all")
    listed.set_defaults(run=run_list)
    revoke = actions.add_parser(
        "revoke", parents=[common], help="end tokens, and those made with them, at once"
    )
    revoke.add_argument("tokens", nargs="+", metavar="ID", help="as `cerebro token list` names them")
    revoke.set_defaults(run=run_revoke)
    quota = commands.add_parser(
        "quota", parents=[common], help="what projects may have and use; an admin's: set it"
    )
    quota.add_argument(
        "project", nargs="?", metavar="PROJECT", help="or `default`, for all that have none of their own"
    )
    quota.add_argument("--open-runs", type=int, metavar="N", help="runs that wait or are worked on at a time")
    quota.add_argument("--models", type=int, metavar="N", help="models in one run")
    quota.add_argument("--worker-hours", type=float, metavar="H", help="device-hours in 30 days")
    quota.add_argument("--bytes", metavar="SIZE", help="of checkpoints and predictions, such as 200GB")
    quota.add_argument("--none", action="store_true", help="the project has no quota of its own any more")
    quota.set_defaults(run=run_quota)
    audit = commands.add_parser(
        "audit",
        parents=[common],
        help="what was done to the cluster: sign-ins, tokens, sizes, deletions, downloads",
    )
    audit.add_argument("--last", type=number, default=50, metavar="N", help="newest entries (default: 50)")
    audit.set_defaults(run=run_audit)


def run_create(options: argparse.Namespace) -> int:
    """``cerebro token create``; returns the exit status."""
    made = cluster_client(options.home).make_token(_request(options))
    record = made.record
    whose = f"{record.principal.name}, {record.principal.role}"
    print(
        f"Token {record.id} of {whose}, until {_day(record.expires)}. It is shown this once: keep it as CEREBRO_TOKEN.",
        file=sys.stderr,
    )
    print(made.token)
    return 0


def run_list(options: argparse.Namespace) -> int:
    """``cerebro token list``; returns the exit status."""
    rows = [_row(each, time.time()) for each in cluster_client(options.home).tokens()]
    if not rows:
        print("There is no token yet: `cerebro token create` makes one.")
        return 0
    heads = ("TOKEN", "WHOSE", "ROLE", "PROJECTS", "SCOPES", "USED", "ENDS", "FOR")
    print("\n".join(table(heads, rows, indent="")))
    return 0


def run_revoke(options: argparse.Namespace) -> int:
    """``cerebro token revoke``; returns the exit status."""
    kvs = cluster_client(options.home)
    for token in options.tokens:
        kvs.revoke_token(token.removeprefix("ck_"))
        print(f"{token} is revoked: it opens nothing within 5 s.")
    return 0


def run_quota(options: argparse.Namespace) -> int:
    """``cerebro quota``; returns the exit status."""
    from pydantic import ValidationError

    from cerebro.contract.quotas import Quota

    kvs = cluster_client(options.home)
    given = {name: getattr(options, name) for name in ("open_runs", "models", "worker_hours")}
    given["bytes"] = None if options.bytes is None else bytes_of(options.bytes)
    asked = {name: value for name, value in given.items() if value is not None}
    if asked or options.none:
        if not options.project or (asked and options.none):
            raise BadRequestError(
                "name a project, and what it may have or --none, such as: cerebro quota vision --models 100"
            )
        try:
            kvs.set_quota(options.project, Quota.model_validate(asked))
        except ValidationError as cause:
            raise BadRequestError(validation_summary(cause.errors())) from cause
    elif options.project:
        raise BadRequestError(
            "say what the project may have: --open-runs, --models, --worker-hours, --bytes or --none"
        )
    rows = []
    for each in kvs.quotas():
        quota = each.quota or Quota()
        name = each.name if each.is_project or each.name == DEFAULT else f"({each.name})"
        hours = _of(round(each.worker_hours, 1), quota.worker_hours)
        kept = f"{size(each.bytes)} of {'any' if quota.bytes is None else size(quota.bytes)}"
        rows.append((name, _of(each.open_runs, quota.open_runs), hours, _limit(quota.models), kept))
    if not rows:
        print(
            "There is no quota, and nothing is counted: what is used counts where an experiment has a project, or "
            "somebody who has signed in by name (docs/users.md)."
        )
    head = ("PROJECT", "OPEN RUNS", "HOURS IN 30 DAYS", "MODELS IN A RUN", "BYTES")
    print("\n".join(table(head, rows, indent="")))
    return 0


def _of(used: float, limit: float | None) -> str:
    return f"{used:g} of {_limit(limit)}"


def _limit(limit: float | None) -> str:
    return "any" if limit is None else f"{limit:g}"


def run_audit(options: argparse.Namespace) -> int:
    """``cerebro audit``; returns the exit status."""
    entries = cluster_client(options.home).audit(options.last)
    rows = [
        (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.time)), e.by or "-", e.what) for e in entries
    ]
    if not rows:
        print(
            "Nothing was done yet that the list holds. Sign-ins are in it where people sign in by name "
            "(docs/users.md)."
        )
    print("\n".join(table(("TIME", "WHO", "WHAT"), rows, indent="")))
    return 0


def _request(options: argparse.Namespace) -> TokenRequest:
    from pydantic import ValidationError

    from cerebro.contract.identity import TokenRequest

    given = {"label": options.label, "days": options.days, "name": options.name, "role": options.role}
    lists = {"projects": options.projects, "scopes": options.scopes}
    split = {
        name: [each for each in text.split(",") if each] for name, text in lists.items() if text is not None
    }
    try:
        return TokenRequest.model_validate({k: v for k, v in given.items() if v is not None} | split)
    except ValidationError as cause:
        raise BadRequestError(validation_summary(cause.errors())) from cause


def _row(record: TokenRecord, now: float) -> tuple[str, ...]:
    who = record.principal
    return (
        record.id,
        who.name,
        who.role,
        ",".join(who.projects) or "-",
        "all" if who.scopes is None else ",".join(who.scopes) or "none",
        _day(record.used) if record.used else "never",
        "expired" if record.expires <= now else _day(record.expires),
        record.label or "-",
    )


def _day(time_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(time_s))
