"""Notification targets, the outbox of messages, and the pure rules about them.

A *target* is an address in apprise's notation, such as ``slack://...``, with the events to send there. The address
often contains a secret. Only `StoredTarget` has it, and no route for people returns that. The controller's *outbox* has
cursors in the logs, messages to send, and the result of each target. docs/notifications.md describes the behaviour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from cerebro.contract.accounts.identity import OPERATOR_WORD, Principal, Role, Scope
from cerebro.contract.base import Contract, Name
from cerebro.contract.runs import Project

MAX_TARGETS = 20
"""Maximum number of targets per owner."""

MAX_ATTEMPTS = 5
"""Attempts to send a message; then it is dropped."""


class EventKind(StrEnum):
    """Event that a message reports."""

    FINISHED = "finished"
    """A run finished or was stopped."""
    FAILED = "failed"
    """A run failed as a whole."""
    PAUSED = "paused"
    """A run was paused: a full volume, a spent budget, no workers."""
    DEADLINE = "deadline"
    """A forecast says that a run will miss its `finish_by`."""
    QUARANTINE = "quarantine"
    """A worker was quarantined. Only for targets that cover the cluster."""
    TEST = "test"
    """A user requested a test message."""


KINDS = tuple(kind for kind in EventKind if kind is not EventKind.TEST)
"""Events that a target may choose."""


class Coverage(StrEnum):
    """Runs that a target reports."""

    OWNER = "own"
    """Runs of the target's owner."""
    PROJECT = "project"
    """Runs of a project."""
    CLUSTER = "cluster"
    """All runs, and workers."""


_SHAPE = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_WEB = ("json", "jsons", "xml", "xmls", "form", "forms")
"""Schemes for web servers, whose host is no secret."""
_LOCAL_SCHEMES = ("dbus", "glib", "gnome", "kde", "qt", "macosx", "windows", "syslog", "file")
"""Schemes that show messages on the controller's machine."""
_HOSTED_SCHEMES = ("discord", "gchat", "opsgenie", "pagerduty", "pbul", "pover", "slack", "tgram", "wxteams")
"""Schemes of public services, whose addresses name no host."""


def _checked_url(url: str) -> str:
    # The messages must not contain the address: logs and answers show them.
    if not _SHAPE.fullmatch(url):
        raise ValueError("expected an address such as slack://TOKEN/... or json://host/path, without spaces")
    scheme = scheme_of(url)
    if scheme in _LOCAL_SCHEMES:
        raise ValueError(
            f"{scheme}:// shows messages on the controller's machine; choose a service that people read"
        )
    return url


def scheme_of(url: str) -> str:
    """Return the scheme of an address, in lower case."""
    return url.partition("://")[0].lower()


def masked(url: str) -> str:
    """Return an address without its secrets: the scheme, and the host of a web server."""
    scheme = scheme_of(url)
    host = _host(url) if scheme in _WEB else ""
    return f"{scheme}://{host}/..." if host else f"{scheme}://..."


def is_hosted(url: str) -> bool:
    """True if messages can only go to a public service.

    Other addresses, and options after ``?``, can make the controller read files or call any server that it reaches.
    """
    return scheme_of(url) in _HOSTED_SCHEMES and "?" not in url


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


Url = Annotated[str, Field(min_length=5, max_length=2000), AfterValidator(_checked_url)]


class TargetRequest(Contract):
    """A request to add a target."""

    url: Url = Field(repr=False)
    events: tuple[EventKind, ...] = Field(KINDS, min_length=1)
    project: Project = ""
    covers_cluster: bool = False
    """True for all runs and workers; for admins."""


class NotificationTarget(Contract):
    """A target without its secret, for lists.

    Attributes:
        address: the masked address.
        owner: `Principal.identity` of its author; empty on clusters without users.
        created: seconds since the epoch, as all times here. Earlier events are not sent.
        tested: time of the newest request for a test message; 0 without one.
    """

    id: Name
    address: str
    events: tuple[EventKind, ...]
    coverage: Coverage
    project: Project = ""
    author: str = ""
    owner: str = ""
    created: float
    tested: float = 0.0


class StoredTarget(Contract):
    """A target with its address, for the store and the sender.

    Attributes:
        suspended: why nothing is sent; empty while messages are sent. It is never stored.
    """

    target: NotificationTarget
    url: str = Field(repr=False)
    suspended: str = Field("", exclude_if=lambda reason: not reason)


class Message(Contract):
    """A message of one target.

    Attributes:
        id: unique per event and target.
        attempts: number of failed attempts.
        due: earliest time of the next attempt. During an attempt: when it counts as lost.
        tested: the answered request, of a test message (`NotificationTarget.tested`).
    """

    id: str
    target: str
    kind: EventKind
    title: str
    body: str
    attempts: int = 0
    due: float = 0.0
    tested: float = 0.0


class TargetStatus(Contract):
    """Results of a target.

    Attributes:
        sent: number of messages sent. last: time of the newest one.
        failed: number of messages dropped after `MAX_ATTEMPTS`.
        error: reason of the newest failed attempt; empty after a success.
        tested: time of the newest answered request for a test message.
    """

    sent: int = 0
    last: float = 0.0
    failed: int = 0
    error: str = ""
    tested: float = 0.0


class Outbox(Contract):
    """State of the sender.

    Attributes:
        cursors: experiment -> number of the last event with queued messages.
        quarantines_until: time of the newest quarantine with queued messages.
        messages: messages to send, oldest first.
        since: events before this time are not sent: the time when a damaged outbox was replaced.
    """

    cursors: dict[str, int] = Field(default_factory=dict)
    quarantines_until: float = 0.0
    messages: tuple[Message, ...] = ()
    statuses: dict[str, TargetStatus] = Field(default_factory=dict)
    since: float = 0.0


class OutboxAnswer(Contract):
    """All targets with their addresses, and the outbox."""

    targets: tuple[StoredTarget, ...] = ()
    outbox: Outbox = Outbox()


class NotificationsAnswer(Contract):
    """Targets that the caller may see, oldest first, and their results by id."""

    targets: tuple[NotificationTarget, ...] = ()
    statuses: dict[str, TargetStatus] = Field(default_factory=dict)


def coverage_of(request: TargetRequest, who: Principal | None) -> Coverage | str:
    """Return the coverage of a new target, or the reason for a refusal.

    Args:
        who: the caller; `None` on clusters without users, whose targets cover the cluster or a project.
    """
    if request.project and request.covers_cluster:
        return "choose a project or the whole cluster, not both"
    if who is None:
        return Coverage.PROJECT if request.project else Coverage.CLUSTER
    is_admin = who.may(Scope.ADMINISTER)
    if not is_admin and not is_hosted(request.url):
        return (
            f"users may send notifications to public services ({', '.join(_HOSTED_SCHEMES)}), without options after "
            "'?': an admin adds other addresses, for example mail and your own servers"
        )
    if request.covers_cluster:
        return Coverage.CLUSTER if is_admin else "only admins may get notifications about the whole cluster"
    if request.project and not is_admin and request.project not in who.projects:
        return f"{who.name} is not in project {request.project!r}: an admin says who is in a project"
    return Coverage.PROJECT if request.project else Coverage.OWNER


def may_see(target: NotificationTarget, who: Principal | None) -> bool:
    """True if the caller may see, test and remove a target: its owner, members of its project, admins."""
    if who is None or who.may(Scope.ADMINISTER):
        return True
    return target.owner == who.identity or bool(target.project and target.project in who.projects)


def suspension(target: NotificationTarget, tokens: Iterable[Principal]) -> str:
    """Return why a target of a project or of the cluster sends nothing; empty if its owner may have it.

    The rights of people of an identity provider are unknown here, so their targets are never suspended.

    Args:
        tokens: principals of all valid tokens.
    """
    is_of_token = (
        bool(target.owner) and target.owner != OPERATOR_WORD and not target.owner.startswith("oidc:")
    )
    if target.coverage is Coverage.OWNER or not is_of_token:
        return ""
    of_owner = [each for each in tokens if each.identity == target.owner]
    if any(
        each.role is Role.ADMIN or (target.project and target.project in each.projects) for each in of_owner
    ):
        return ""
    if target.project:
        return f"{target.author} has no valid token in project {target.project}, so nothing is sent"
    return f"{target.author} has no valid token of an admin, so nothing is sent"


def covers(
    target: NotificationTarget, kind: EventKind, *, owner: str, author: str, projects: Iterable[str]
) -> bool:
    """True if a target reports an event of a run.

    Args:
        owner: `ExperimentRecord.owner`. author: author of the run. projects: projects of experiment and run.
    """
    if kind not in target.events or kind is EventKind.QUARANTINE:
        return kind is EventKind.QUARANTINE and kind in target.events and target.coverage is Coverage.CLUSTER
    if target.coverage is Coverage.OWNER:
        # Names from an identity provider are not unique.
        is_author = bool(author) and author == target.author and not target.owner.startswith("oidc:")
        return owner == target.owner or is_author
    return target.coverage is Coverage.CLUSTER or target.project in projects
