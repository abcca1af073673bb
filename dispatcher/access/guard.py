"""Checks before every route: host name, identity, form token, and security headers on the response.

Closed by default: only routes in `_OPEN` work without an identity. A request proves its identity by a session cookie,
a bearer token, or a header of an authenticating proxy; `g.identity` says which. Browsers never store the token: the
session cookie is signed with a key derived from the token. Sessions last 7 days, survive restarts, and end when the
token changes or the user signs out (`dispatcher.access.sessions`). Installed by `app.create_app`. Whether a user may
command an experiment is decided by the store, not here.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

from flask import (
    Flask,
    Response,
    abort,
    current_app,
    g,
    has_request_context,
    request,
    session,
)
from werkzeug.wrappers import Response as BaseResponse

from cerebro.contract.accounts import reserved_names
from cerebro.contract.accounts.identity import Scope
from cerebro.errors import ForbiddenError, StoreUnavailableError, UnauthorizedError
from cerebro.runtime.web.addresses import EVERYWHERE, host_name
from dispatcher.access.identities import Identities, Known
from dispatcher.access.oidc import IdTokenError, IdTokens, is_jwt
from dispatcher.access.refusals import refused, too_many, unauthorized
from dispatcher.access.sessions import Sessions
from dispatcher.access.sign_in_limit import SignInLimiter
from dispatcher.api.gateway import PREFIX
from dispatcher.settings import Settings

_log = logging.getLogger(__name__)

MAX_UPLOAD_BYTES = 33 * 1024 * 1024
"""Largest start form: an archive of 32 MiB plus the other fields."""
MAX_FORM_BYTES = 64 * 1024
"""Largest other form."""
MAX_API_BYTES = 48 * 1024 * 1024
"""Largest body of the store's API. Each of its routes has a lower limit."""
SESSION_S = 7 * 24 * 3600
MAX_NAME_LENGTH = 100
"""Maximum length of a person's name."""
VIEWS = f"{PREFIX}/views/"
"""Address prefix of the read API: programs use the token, the page's own scripts the session."""

_PROBES = frozenset({"health", "live"})
_OPEN = frozenset({"sign_in", "static"}) | _PROBES
_HANDLES_FOREIGN_FORM = frozenset({"sign_in", "start", "pages.model_form"})
"""Endpoints that check `g.is_form_ours` themselves, so they can show the form again with the typed values."""
_TAKES_UPLOADS = frozenset({"start", "start_check"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_TRUSTED_SITES = frozenset({"same-origin", "none"})
"""`Sec-Fetch-Site` of requests by this page's scripts and of typed addresses."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE = EVERYWHERE | {"0.0.0.0"}
_HEADERS = {
    # The hash allows the one style element that plotly.js creates. `img-src` allows its heat maps and saved images.
    "Content-Security-Policy": "default-src 'none'; "
    "style-src 'self' 'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='; script-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Authentication and request checks of one app. Safe for several threads.

    Args:
        identities: looks up tokens in users mode; `None` without.
        id_tokens: verifies ID tokens of a proxy; `None` without such a proxy.
        note: adds a sign-in by ID token to the audit log.
    """

    def __init__(
        self,
        settings: Settings,
        limiter: SignInLimiter,
        sessions: Sessions,
        *,
        identities: Identities | None = None,
        id_tokens: IdTokens | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.limiter, self.sessions, self.identities = limiter, sessions, identities
        self._id_tokens, self._note = id_tokens, note
        self._id_header = settings.oidc.header if settings.oidc is not None else ""
        self._token = _digest(settings.token)
        bind_host = set() if settings.host in _EVERYWHERE else {settings.host.lower()}
        self._hosts = _LOOPBACK | bind_host | settings.public_hosts
        self._is_everywhere = settings.host in _EVERYWHERE
        self._key = hmac.new(
            settings.token.encode(), b"cerebro dispatcher session 1", hashlib.sha256
        ).digest()
        # Browsers share cookies between ports: two clusters on one machine need two names.
        self._cookie = f"cerebro-{settings.port}"
        self._is_https = settings.is_https
        self._auth_proxy = settings.auth_proxy

    def install(self, app: Flask) -> None:
        """Configure sessions, and register the checks and response headers."""
        app.config.update(
            SECRET_KEY=self._key,
            SESSION_COOKIE_NAME=self._cookie,
            SESSION_COOKIE_HTTPONLY=True,
            SESSION_COOKIE_SAMESITE="Lax",
            SESSION_COOKIE_SECURE=self._is_https,
            SESSION_REFRESH_EACH_REQUEST=False,
            PERMANENT_SESSION_LIFETIME=SESSION_S,
            MAX_CONTENT_LENGTH=MAX_FORM_BYTES,
        )
        app.before_request(self.check)
        app.after_request(self.harden)
        app.jinja_env.globals["csrf_token"] = csrf_token

    def is_token(self, token: str) -> bool:
        """True if `token` is the cluster's token. Compares in constant time."""
        return hmac.compare_digest(_digest(token), self._token)

    def check(self) -> BaseResponse | None:
        """Refuse the request, or store its identity in `g`. Runs before every route, unknown addresses included."""
        g.request_id = secrets.token_hex(4)
        g.identity, g.name, g.principal, g.acts_for = None, "", None, ""
        g.is_form_ours = False
        if request.endpoint in _PROBES:
            return None  # probes reveal nothing worth protecting
        is_view = request.path.startswith(VIEWS)
        if request.path.startswith(f"{PREFIX}/") and not is_view:
            return self._check_program()
        proxy_user, id_token = self._proxy_user(), self._id_token()
        is_program = not proxy_user and not id_token and "Authorization" in request.headers
        if not (is_view and is_program) and not self._is_allowed_host(
            host_name(request.headers.get("Host", ""))
        ):
            abort(421)
        if is_program:
            refusal = self._bearer()
            if refusal is not None:
                return refusal
        elif id_token and request.endpoint != "static":
            self._identify_by_id_token(id_token)
        elif proxy_user:
            g.identity, g.name = "proxy", proxy_user
        elif session.get("is_signed_in") is True and request.endpoint != "static":
            self._resume()
        if g.identity is None and request.endpoint not in _OPEN:
            return unauthorized() if is_view else refused()
        _check_reads()
        is_change = request.method not in _SAFE
        if is_view or is_change:
            _check_site()
        if request.endpoint in _TAKES_UPLOADS:
            request.max_content_length = MAX_UPLOAD_BYTES
        if is_change:
            _check_form()
        return None

    def harden(self, response: Response) -> Response:
        """Add the security headers. Forbid caching of pages."""
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if request.endpoint != "static":
            response.headers.setdefault("Cache-Control", "no-store")
        response.headers["X-Request-Id"] = g.get("request_id", "")
        return response

    def _check_program(self) -> BaseResponse | None:
        """Check a request to the store's API. Only the bearer token counts: no cookie, host name or proxy header."""
        refusal = self._bearer()
        if refusal is None:
            request.max_content_length = MAX_API_BYTES
            if request.endpoint == "volumes":
                _check_reads()
        return refusal

    def _bearer(self) -> BaseResponse | None:
        """Check the bearer token of a program.

        Never delay a valid token: behind a proxy all callers share one address. Another scheme, such as a proxy's
        own credentials, does not count as a wrong token.
        """
        scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not credentials.strip():
            return unauthorized()
        why = ""
        if self.identities is None and self.is_token(credentials.strip()):
            g.identity = "bearer"
            return None
        if self.identities is not None:
            try:
                self._identify(self.identities.from_token(credentials.strip()), "bearer")
            except (UnauthorizedError, ForbiddenError) as error:
                why = str(error)
            else:
                return None
        if wait_s := self.limiter.failed(request.remote_addr or ""):
            return too_many(wait_s)
        return unauthorized(why)

    def _identify(self, known: Known, identity: str) -> None:
        g.identity, g.principal, g.acts_for = identity, known.principal, known.acts_for
        g.name = known.principal.name

    def _id_token(self) -> str:
        """Return the ID token from the proxy's header, or an empty text."""
        if self._id_tokens is None:
            return ""
        header = request.headers.get(self._id_header, "").removeprefix("Bearer ").strip()
        return header if is_jwt(header) else ""

    def _identify_by_id_token(self, id_token: str) -> None:
        assert self._id_tokens is not None
        try:
            known, is_new = self._id_tokens.verify(id_token)
        except IdTokenError as error:
            _log.warning("sign-in refused address=%s why=%s", request.remote_addr, error)
            raise
        self._identify(known, "oidc")
        if is_new:
            self._note(f"signed in by ID token from {request.remote_addr}")

    def _resume(self) -> None:
        """Identify the request by its session cookie. Clear the cookie if the session or its token has ended."""
        if self._has_ended():
            session.clear()
            return
        if self.identities is None:
            g.identity, g.name = "session", str(session.get("name", ""))
            return
        try:
            self._identify(self.identities.from_session(str(session.get("acts_for", ""))), "session")
        except (UnauthorizedError, ForbiddenError) as error:
            _log.warning("session ended address=%s why=%s", request.remote_addr, error)
            session.clear()

    def _has_ended(self) -> bool:
        """True if the session was signed out. While the store is away, unknown sessions see public pages only."""
        identity = session.get("id")
        if not isinstance(identity, str):
            return True
        try:
            return self.sessions.has_ended(identity)
        except StoreUnavailableError:
            if request.endpoint in _OPEN:
                return True
            raise

    def begin_session(self, name: str, acts_for: str = "") -> None:
        """Sign the browser in, under a new form token.

        Args:
            name: display name that the person typed.
            acts_for: the person's identity, in users mode.
        """
        session.clear()
        if acts_for:
            session["acts_for"] = acts_for
        session.permanent = True
        session["is_signed_in"], session["id"] = True, self.sessions.begin()
        session["name"] = person(name)
        csrf_token()

    def end_session(self) -> None:
        """Sign the browser out, and all copies of its cookie.

        Raises:
            StoreUnavailableError: the copies were not ended, because the store is away.
        """
        identity, g.acts_for = session.get("id"), ""
        session.clear()
        if isinstance(identity, str):
            self.sessions.end(identity)

    def _is_allowed_host(self, host: str) -> bool:
        """True if a page may be opened under this host name.

        The check prevents DNS rebinding. Numeric addresses are safe, because no name server can redirect them.
        """
        return host in self._hosts or (self._is_everywhere and _is_number(host))

    def _proxy_user(self) -> str:
        """Return the user that a trusted proxy names, or an empty text."""
        proxy = self._auth_proxy
        if proxy is None or not (header := request.headers.get(proxy.header, "")):
            return ""
        try:
            address = ipaddress.ip_address(request.remote_addr or "")
        except ValueError:
            return ""  # the server listens on a Unix socket
        address = getattr(address, "ipv4_mapped", None) or address
        return person(header) if any(address in network for network in proxy.networks) else ""


def csrf_token() -> str:
    """Return the form token of this session, and behind a proxy of its user. Creates it at first use.

    An attacker can copy a session cookie or plant it in another browser. So the form token is an HMAC with the
    server's key over the session and the user.
    """
    if "csrf" not in session:
        session["csrf"] = secrets.token_urlsafe(32)
    identity = g.get("identity")
    user = g.name if identity in ("proxy", "oidc") else ""
    if identity == "oidc":
        user += f" {g.principal.identity}"  # names are not unique
    key = current_app.secret_key
    assert isinstance(key, bytes)
    return hmac.new(key, f"{session['csrf']} {user}".encode(), hashlib.sha256).hexdigest()


def _check_site() -> None:
    """Refuse requests that another site triggered. Old browsers and programs send no `Sec-Fetch-Site`."""
    if g.identity != "bearer" and request.headers.get("Sec-Fetch-Site", "same-origin") not in _TRUSTED_SITES:
        abort(403)


def _check_reads() -> None:
    """Refuse services, and tokens without the scope `read`."""
    who = g.principal
    if who is not None and (who.kind == "service" or not who.may(Scope.READ)):
        raise ForbiddenError(
            f"{who.name} is a service and cannot open pages"
            if who.kind == "service"
            else who.lacks(Scope.READ)
        )


def _check_form() -> None:
    # A browser attaches the cookie to requests from any site, but never the bearer token.
    sent_token = request.form.get("csrf", "")
    is_ours = "csrf" in session and hmac.compare_digest(_digest(sent_token), _digest(csrf_token()))
    g.is_form_ours = g.identity == "bearer" or is_ours
    if not g.is_form_ours and request.endpoint not in _HANDLES_FOREIGN_FORM:
        abort(403)


def acts_for() -> str:
    """Return the identity of the current request for the store (`ACTS_FOR`), or an empty text."""
    return str(g.get("acts_for", "")) if has_request_context() else ""


def person(name: str) -> str:
    """Clean a person's name: one short line, never a service's name."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in name).split())[:MAX_NAME_LENGTH]
    return f"{plain} (a person)" if reserved_names.reason(plain) else plain


def author() -> str:
    """Return the author of a command for the log: name, else kind of identity."""
    return g.name or {"bearer": "a program", "session": "the web page"}.get(g.identity, "")


def local_path(target: str, default: str) -> str:
    """Return `target` if it is a path on this page, else `default`. Prevents open redirects after sign-in."""
    parts = urlsplit(target) if target.isprintable() and "\\" not in target else None
    if parts is None or parts.scheme or parts.netloc or not target.startswith("/") or target.startswith("//"):
        return default
    return target


def _is_number(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
