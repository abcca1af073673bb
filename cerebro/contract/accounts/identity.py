"""Roles, scopes and tokens of kvs_api's callers: types and pure rules, for `kvs_api`, the dispatcher and the client.

`kvs_api` enforces the rules; pages use them to hide refused actions. A role has scopes, and a route needs one
scope (`cerebro.contract.rest.routes`). An object in a project also needs a caller who is a member of the project.
The rules have no state, so no order of calls gains rights.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from enum import StrEnum
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, Field

from cerebro.contract.accounts import reserved_names
from cerebro.contract.base import Contract, Name


class Scope(StrEnum):
    """Right that a route needs. Each route has one."""

    OPEN = "open"
    """No authentication: probes."""
    KNOWN = "known"
    """Any authenticated caller."""
    READ = "read"
    """Experiments, logs, workers, the queue."""
    FETCH = "fetch"
    """User code and removed data sets, which workers read in addition to their inbox."""
    TOKENS = "tokens"
    """One's own tokens."""
    CREATE = "create"
    """Experiments and code."""
    STEER = "steer"
    """Runs and models of experiments; `Principal.may_steer` checks each experiment."""
    CLUSTER = "cluster"
    """The number and choice of workers."""
    ADMINISTER = "administer"
    """Shared matters: quarantine, measurements, quotas, the audit list, other users' tokens."""
    CONTROL = "control"
    """Decisions of the controller."""
    WORK = "work"
    """A worker's registration, reports and inbox."""
    NONE = "none"
    """No caller has it: the default of a route without a scope."""
    ACT = "act"
    """Act for a signed-in user: the dispatcher."""


class Role(StrEnum):
    """Role of a caller. The first three are for people and their programs."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"
    CONTROLLER = "controller"
    WORKER = "worker"
    DISPATCHER = "dispatcher"
    EXPORT = "export"


_VIEWER = frozenset({Scope.OPEN, Scope.KNOWN, Scope.READ, Scope.FETCH, Scope.TOKENS})
_MEMBER = _VIEWER | {Scope.CREATE, Scope.STEER}

SCOPES: dict[Role, frozenset[Scope]] = {
    Role.VIEWER: _VIEWER,
    Role.MEMBER: _MEMBER,
    Role.ADMIN: _MEMBER | {Scope.CLUSTER, Scope.ADMINISTER},
    Role.CONTROLLER: frozenset(
        {Scope.OPEN, Scope.KNOWN, Scope.READ, Scope.FETCH, Scope.CLUSTER, Scope.CONTROL}
    ),
    Role.WORKER: frozenset({Scope.OPEN, Scope.KNOWN, Scope.FETCH, Scope.WORK}),
    Role.DISPATCHER: frozenset({Scope.OPEN, Scope.KNOWN, Scope.READ, Scope.FETCH, Scope.ACT}),
    Role.EXPORT: frozenset({Scope.OPEN, Scope.KNOWN, Scope.READ}),
}
"""The one table of rights."""

OPERATOR_WORD = "operator"
"""First word of `operator_word`."""

RANK = (Role.VIEWER, Role.MEMBER, Role.ADMIN)
"""Roles of people, the lesser first. Only a token of one of these can be made."""

PersonRole = Literal[Role.VIEWER, Role.MEMBER, Role.ADMIN]

_LONGEST_NAME = 100


def _one_line(name: str) -> str:
    if not name.isprintable() or name != " ".join(name.split()):
        raise ValueError("a name is one line of printable characters, without spaces around it")
    return name


PersonName = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME), AfterValidator(_one_line)]
"""A person's name in logs, from an identity provider or an admin."""


class Owned(Protocol):
    """An object owned by a project or, without a project, by its author."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def project(self) -> str:
        """Its project; empty without a project."""

    @property
    def author(self) -> str:
        """The owner's name at the time of creation."""

    @property
    def owner(self) -> str:
        """`Principal.identity` of its author; empty if it was created on a cluster without users."""


class Principal(Contract):
    """An authenticated caller.

    Attributes:
        name: name in logs. role: its rights. kind: a signed-in person, one of their tokens, or a service.
            projects: its memberships. scopes: limits of a token with fewer rights than its role. token: the
            token's id.
        id: set for the operator and for people of an identity provider, because a provider may rename people
            and reuse names. An admin's names are unique, so people named by an admin have no id.
    """

    name: PersonName
    role: Role
    kind: Literal["person", "program", "service"] = "person"
    projects: tuple[Name, ...] = ()
    scopes: tuple[Scope, ...] | None = None
    token: str = ""
    id: str = Field(
        "", pattern=rf"^(?:{OPERATOR_WORD}|oidc:[0-9a-f]{{32}})?$", exclude_if=lambda found: not found
    )

    @property
    def identity(self) -> str:
        """Key of the caller in records: the id, or the name if an admin gave it."""
        return self.id or self.name

    def may(self, scope: Scope) -> bool:
        """True if it has the scope. Ignores projects."""
        allowed = SCOPES[self.role]
        return scope in (allowed if self.scopes is None else allowed.intersection({*self.scopes, *_ALWAYS}))

    def is_in(self, record: Owned) -> bool:
        """True if it is a member of the record's project or, without a project, its owner. True for admins."""
        if self.may(Scope.ADMINISTER):
            return True
        return record.project in self.projects if record.project else record.owner == self.identity

    def may_steer(self, record: Owned) -> bool:
        """True if it may send commands to this experiment."""
        return self.may(Scope.STEER) and self.is_in(record)

    def lacks(self, scope: Scope) -> str:
        """Return the message for a caller without the scope."""
        roles = " or ".join(role for role, scopes in SCOPES.items() if scope in scopes) or "nobody"
        if scope in SCOPES[self.role]:
            return (
                f"this token of {self.name} was made without the scope {scope.value!r}: use one that has it"
            )
        return f"{self.name} is {self.role}, and this needs the scope {scope.value!r}, which {roles} has"

    def is_out_of(self, record: Owned) -> str:
        """Return the error for a caller without the right to steer the experiment."""
        if record.project:
            return (
                f"experiment {record.name!r} is in project {record.project!r}, and {self.name} is not: an admin says "
                "who is in a project"
            )
        whose = (
            f"is {record.author or record.owner}'s" if record.owner else "was made before there were users"
        )
        return (
            f"experiment {record.name!r} {whose} and in no project, so only an admin can change it: create one of "
            "your own, in a project to share it"
        )

    def chosen_project(self, project: str) -> str:
        """Return the given project, or the caller's only project.

        Raises:
            ValueError: the caller is in several projects; names them.
        """
        if project or not self.projects or self.may(Scope.ADMINISTER):
            return project
        if len(self.projects) > 1:
            raise ValueError(
                f"{self.name} is in several projects: name the experiment's project with project=... "
                f"({', '.join(self.projects)})"
            )
        return self.projects[0]


_ALWAYS = (Scope.OPEN, Scope.KNOWN)

# --- tokens --------------------------------------------------------------------------------------

DEFAULT_DAYS, MAX_DAYS = 90, 365
MAX_TOKENS = 50
"""Maximum number of unexpired tokens per person."""

TOKEN = re.compile(r"ck_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
"""``ck_ID_SECRET``. The id finds the token and names it in lists; the secret is never stored."""

TokenId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class TokenRequest(Contract):
    """A request for a token. Omitted fields are copied from its maker."""

    label: str = Field("", max_length=_LONGEST_NAME)
    """Purpose, for people."""
    days: int = Field(DEFAULT_DAYS, ge=1, le=MAX_DAYS)
    name: PersonName | None = None
    """Owner of the token: an admin makes tokens for others."""
    role: PersonRole | None = None
    projects: tuple[Name, ...] | None = None
    scopes: tuple[Scope, ...] | None = None


class TokenRecord(Contract):
    """A token without its secret, for storage and lists."""

    id: TokenId
    principal: Principal
    label: str = ""
    maker: str = ""
    """Id of the token that made this one, if its owner used one. This token expires no later."""
    created: float
    """Seconds since the epoch, as all times here."""
    expires: float
    used: float | None = None
    """Time of the last use, to the minute."""


class MadeToken(Contract):
    """A new token with its secret, which is shown only in this answer."""

    token: str
    record: TokenRecord


SHORTEST_TOKEN = 20
"""Minimum length of a cluster's token: 20 random hexadecimal digits have 80 bits, too many to guess by requests."""


def warning_of(token: str) -> str:
    """Return a warning for the log if a cluster's token is short, else an empty text."""
    if len(token) >= SHORTEST_TOKEN:
        return ""
    return (
        f"CEREBRO_TOKEN has {len(token)} characters and can be guessed by anyone who reaches the port: set one of "
        f"{SHORTEST_TOKEN} or more by chance, such as of `openssl rand -hex 32`"
    )


def minted() -> tuple[str, str, str]:
    """Create a token: its id, its full text and its stored digest."""
    identity, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return identity, f"ck_{identity}_{secret}", digest(secret)


def digest(secret: str) -> str:
    """Return the SHA-256 of a secret in hex. Its 256 random bits need no salt or stretching."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def operator_word(secret: str) -> str:
    """Return the dispatcher's word for sessions signed in with the cluster's own token (`ACTS_FOR`).

    It contains a digest of the token, so a new cluster token invalidates it.
    """
    digest = hmac.new(
        secret.encode("utf-8", "surrogatepass"), b"cerebro operator's session 1", hashlib.sha256
    )
    return f"{OPERATOR_WORD} {digest.hexdigest()}"


def granted(request: TokenRequest, maker: Principal) -> Principal | str:
    """Return the principal of a requested token, or a message that refuses it.

    A token never has more rights than its maker; only an admin can give rights to others.
    """
    if maker.role not in RANK:
        return f"{maker.name} is a service: people make tokens"
    if request.name and (reserved := reserved_names.reason(request.name)):
        return reserved
    name, role = request.name or maker.name, request.role or (maker.role if not request.name else Role.MEMBER)
    is_own = name == maker.name
    projects = maker.projects if request.projects is None and is_own else request.projects or ()
    scopes = maker.scopes if request.scopes is None else request.scopes
    if not maker.may(Scope.ADMINISTER):
        if not is_own:
            return f"a token for {name} is made by {name}, or by an admin"
        if RANK.index(role) > RANK.index(maker.role):
            return f"{maker.name} is {maker.role}, so its tokens cannot be {role}"
        if missing := sorted(set(projects) - set(maker.projects)):
            return f"{maker.name} is not in project {', '.join(missing)}: leave it out, or ask an admin"
    if missing_scopes := [scope for scope in scopes or () if not maker.may(scope)]:
        return maker.lacks(missing_scopes[0])
    principal = Principal(
        name=name, role=role, kind="program", projects=projects, scopes=scopes, id=maker.id if is_own else ""
    )
    if is_own and maker.projects and not projects and principal.may(Scope.CREATE):
        # Its experiments would be in no project, so no project's quota would count them.
        return (
            f"a token of {name} that is in no project could not create experiments: name at least one of "
            f"{', '.join(maker.projects)}, leave projects out for all of them, or leave the scope 'create' out"
        )
    return principal


def owns(principal: Principal, record: TokenRecord) -> bool:
    """True if the caller may see and revoke a token: their own, or any for an admin."""
    return record.principal.identity == principal.identity or principal.may(Scope.ADMINISTER)


# --- acting for a user -----------------------------------------------------------------------------

ACTS_FOR = "Cerebro-Acts-For"
"""Header that names the user for the dispatcher's request; accepted only from the dispatcher.

Its value is a `Principal` as JSON, ``token ID`` for a session signed in with a token, or `operator_word` for
the cluster's own token.
"""
