"""Who asks the store, and what that one may: roles, scopes, tokens. Types and pure rules.

The rules are asked in `kvs_api`, which enforces them, and by the page, which offers nothing that would be refused.
Rights come from here alone: a role has scopes, a route needs one of them (`cerebro.contract.routes`), and what belongs
to a project needs, beside the scope, that the caller is in it. There is no state in it: no order of calls gains rights.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from enum import StrEnum
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, Field

from cerebro.contract import reserved_names
from cerebro.contract.base import Contract, Name


class Scope(StrEnum):
    """What a route is for. Each has one."""

    OPEN = "open"
    """Nobody needs to be known: probes."""
    KNOWN = "known"
    """Whoever is known, as whom it is."""
    READ = "read"
    """Experiments, logs, workers, the queue."""
    FETCH = "fetch"
    """User code, and what is to be removed: what workers read beside their inbox."""
    TOKENS = "tokens"
    """One's own tokens."""
    CREATE = "create"
    """Experiments and code."""
    STEER = "steer"
    """Runs and models of an experiment, whose project one is in."""
    CLUSTER = "cluster"
    """How many workers there are, and which."""
    ADMINISTER = "administer"
    """What concerns everybody: quarantine, measurements, quotas, the audit list, others' tokens."""
    CONTROL = "control"
    """Decisions of the controller."""
    WORK = "work"
    """A worker's registration, reports and inbox."""
    NONE = "none"
    """Nobody has it: what a route needs that says nothing."""
    ACT = "act"
    """Act for somebody who has signed in: the dispatcher."""


class Role(StrEnum):
    """What somebody is. The first three are those of people and their programs."""

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
"""Of whoever has the cluster's own token; see `operator_word`."""

RANK = (Role.VIEWER, Role.MEMBER, Role.ADMIN)
"""Roles of people, the lesser first. Only a token of one of these can be made."""

PersonRole = Literal[Role.VIEWER, Role.MEMBER, Role.ADMIN]

_LONGEST_NAME = 100


def _one_line(name: str) -> str:
    if not name.isprintable() or name != " ".join(name.split()):
        raise ValueError("a name is one line of printable characters, without spaces around it")
    return name


PersonName = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME), AfterValidator(_one_line)]
"""As it stands in logs: what an identity provider or an admin calls somebody."""


class Owned(Protocol):
    """What belongs to a project or, without one, to who made it: an experiment, a row of a list."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def project(self) -> str:
        """Empty: in none."""

    @property
    def author(self) -> str:
        """The owner's name at the time of creation."""

    @property
    def owner(self) -> str:
        """`Principal.identity` of who made it. Empty: from before there were users."""


class Principal(Contract):
    """Who asks.

    Attributes:
        name: as it is written into logs. role: what it may. kind: a person that has signed in, a token of it, or a
            service. projects: those that it is in. scopes: of a token that may do less than its role. token: its id.
        id: set for the operator and for people of an identity provider, because a provider may rename people and reuse
            names. An admin's names are unique, so people whom an admin named have no id.
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
        """Name its records by this: the id, or the name if an admin gave it."""
        return self.id or self.name

    def may(self, scope: Scope) -> bool:
        """Whether it has the scope; in which projects is another question."""
        allowed = SCOPES[self.role]
        return scope in (allowed if self.scopes is None else allowed.intersection({*self.scopes, *_ALWAYS}))

    def is_in(self, record: Owned) -> bool:
        """Whether an experiment is its own to steer: that of a project that it is in or, without a project, one that it
        has made. Of an administrator all are."""
        if self.may(Scope.ADMINISTER):
            return True
        return record.project in self.projects if record.project else record.owner == self.identity

    def may_steer(self, record: Owned) -> bool:
        """Whether it may give commands to this experiment."""
        return self.may(Scope.STEER) and self.is_in(record)

    def lacks(self, scope: Scope) -> str:
        """Why it is refused what needs the scope: for people."""
        roles = " or ".join(role for role, scopes in SCOPES.items() if scope in scopes) or "nobody"
        if scope in SCOPES[self.role]:
            return (
                f"this token of {self.name} was made without the scope {scope.value!r}: use one that has it"
            )
        return f"{self.name} is {self.role}, and this needs the scope {scope.value!r}, which {roles} has"

    def is_out_of(self, record: Owned) -> str:
        """Why it may not steer the experiment: for people."""
        if record.project:
            return (
                f"experiment {record.name!r} is in project {record.project!r}, and {self.name} is not: an admin says "
                "who is in a project"
            )
        whose = (
            f"is {record.author or record.owner}'s" if record.owner else "was made before there were users"
        )
        return (
            f"experiment {record.name!r} {whose} and in no project, so nobody else steers it but an admin: make one of "
            "your own, in a project to share it"
        )

    def chosen_project(self, given: str) -> str:
        """The project of an experiment that it makes: what was given, or the only one that it is in.

        Raises:
            ValueError: it is in several; names them.
        """
        if given or not self.projects or self.may(Scope.ADMINISTER):
            return given
        if len(self.projects) > 1:
            raise ValueError(
                f"{self.name} is in several projects: say in which the experiment is to be, by project=... "
                f"({', '.join(self.projects)})"
            )
        return self.projects[0]


_ALWAYS = (Scope.OPEN, Scope.KNOWN)

# --- tokens --------------------------------------------------------------------------------------

DEFAULT_DAYS, MAX_DAYS = 90, 365
MAX_TOKENS = 50
"""Of one person, that have not ended."""

TOKEN = re.compile(r"ck_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
"""``ck_ID_SECRET``: by the id it is found, and named in lists; the secret is never stored."""

TokenId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class TokenRequest(Contract):
    """A token that is to be made. What is left out is as its maker has it."""

    label: str = Field("", max_length=_LONGEST_NAME)
    """What it is for, for people."""
    days: int = Field(DEFAULT_DAYS, ge=1, le=MAX_DAYS)
    name: PersonName | None = None
    """Whose it is: an admin makes tokens for others."""
    role: PersonRole | None = None
    projects: tuple[Name, ...] | None = None
    scopes: tuple[Scope, ...] | None = None


class TokenRecord(Contract):
    """A token as it is stored and listed: all but its secret."""

    id: TokenId
    principal: Principal
    label: str = ""
    maker: str = ""
    """Id of the token that it was made with, if its owner made it with one: it ends with that one at the latest."""
    created: float
    """Seconds since the epoch, as all times here."""
    expires: float
    used: float | None = None
    """When it was last used, to the minute."""


class MadeToken(Contract):
    """A new token: the only time that it is shown."""

    token: str
    record: TokenRecord


SHORTEST_TOKEN = 20
"""Least characters of a cluster's token: 20 random hexadecimal digits have 80 bits, too many to guess by requests."""


def warning_of(token: str) -> str:
    """Return a warning for the log if a cluster's token is short, else an empty text."""
    if len(token) >= SHORTEST_TOKEN:
        return ""
    return (
        f"CEREBRO_TOKEN has {len(token)} characters and can be guessed by whoever reaches the port: set one of "
        f"{SHORTEST_TOKEN} or more by chance, such as of `openssl rand -hex 32`"
    )


def minted() -> tuple[str, str, str]:
    """A new token: its id, the whole of it, and what is stored of it."""
    identity, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return identity, f"ck_{identity}_{secret}", digest(secret)


def digest(secret: str) -> str:
    """SHA-256 of a secret, in hex. Without salt and stretching: it has 256 bits of chance, nobody guesses it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def operator_word(secret: str) -> str:
    """By which word the dispatcher acts for whoever has signed in with the cluster's own token (`ACTS_FOR`). With a
    digest of it: once the cluster has another token, the word means nobody."""
    made = hmac.new(secret.encode("utf-8", "surrogatepass"), b"cerebro operator's session 1", hashlib.sha256)
    return f"{OPERATOR_WORD} {made.hexdigest()}"


def granted(asked: TokenRequest, maker: Principal) -> Principal | str:
    """Who a token that is asked for stands for; or, as a text, why its maker may not make it.

    A token never may more than who makes it, whatever is asked: an admin alone gives what it has not.
    """
    if maker.role not in RANK:
        return f"{maker.name} is a service: people make tokens"
    if asked.name and (reserved := reserved_names.reason(asked.name)):
        return reserved
    name, role = asked.name or maker.name, asked.role or (maker.role if not asked.name else Role.MEMBER)
    is_own = name == maker.name
    projects = maker.projects if asked.projects is None and is_own else asked.projects or ()
    scopes = maker.scopes if asked.scopes is None else asked.scopes
    if not maker.may(Scope.ADMINISTER):
        if not is_own:
            return f"a token for {name} is made by {name}, or by an admin"
        if RANK.index(role) > RANK.index(maker.role):
            return f"{maker.name} is {maker.role}, so its tokens cannot be {role}"
        if missing := sorted(set(projects) - set(maker.projects)):
            return f"{maker.name} is not in project {', '.join(missing)}: leave it out, or ask an admin"
    if missing_scopes := [scope for scope in scopes or () if not maker.may(scope)]:
        return maker.lacks(missing_scopes[0])
    made = Principal(
        name=name, role=role, kind="program", projects=projects, scopes=scopes, id=maker.id if is_own else ""
    )
    if is_own and maker.projects and not projects and made.may(Scope.CREATE):
        # Its experiments would be in no project, so no project's quota would count them.
        return (
            f"a token of {name} that is in no project could not create experiments: name at least one of "
            f"{', '.join(maker.projects)}, leave projects out for all of them, or leave the scope 'create' out"
        )
    return made


def owns(principal: Principal, record: TokenRecord) -> bool:
    """Whether one sees and revokes a token: its own, and an admin all."""
    return record.principal.identity == principal.identity or principal.may(Scope.ADMINISTER)


# --- acting for somebody ---------------------------------------------------------------------------

ACTS_FOR = "Cerebro-Acts-For"
"""Header by which the dispatcher says for whom it asks: a `Principal` as JSON, ``token ID`` for who has signed in with
a token, or `operator_word` for who has with the cluster's own. The store believes it of nobody else."""
