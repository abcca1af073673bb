"""The part of `cerebro.runtime.kvs.client.KvsClient` for users, tokens, quotas and sessions.

The CLI, the client, the dispatcher and the controller call it; kvs_api checks their rights. Each method is one request.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from urllib.parse import quote

from cerebro.contract.accounts.identity import ACTS_FOR, MadeToken, Principal, TokenRecord, TokenRequest
from cerebro.contract.accounts.quotas import Quota, Usage
from cerebro.contract.rest import api
from cerebro.runtime.kvs.transport import Transport


class AccountCalls(Transport):
    """Calls about the caller, its tokens, quotas and sessions.

    Outside users mode, all calls except those about sessions raise `NotFoundError`.
    """

    def whoami(self, *, acts_for: str = "", token: str = "") -> Principal:
        """Return the caller.

        Args:
            acts_for: the user for whom the dispatcher calls.
            token: another token than the client's own, to identify.

        Raises:
            UnauthorizedError: the token has expired.
        """
        headers = {ACTS_FOR: acts_for} if acts_for else {}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        content = self.send("GET", "/v1/whoami", None, 0.0, headers)
        return self.answered(Principal, "GET", "/v1/whoami", content)

    def tokens(self, *, acts_for: str = "") -> tuple[TokenRecord, ...]:
        """Return the caller's tokens, newest first; for an admin, all tokens."""
        headers = {ACTS_FOR: acts_for} if acts_for else {}
        content = self.send("GET", "/v1/tokens", None, 0.0, headers)
        return self.answered(api.TokensAnswer, "GET", "/v1/tokens", content).tokens

    def make_token(self, request: TokenRequest) -> MadeToken:
        """Create a token; only the answer contains it. A repeated call creates a second token.

        Raises:
            ForbiddenError: it would have more rights than the caller.
            ConflictError: its owner has too many.
        """
        return self.call("POST", "/v1/tokens", MadeToken, request)

    def revoke_token(self, token: str) -> None:
        """Revoke a token by id, with all tokens made with it. `NotFoundError` if the caller has no token with
        this id."""
        self.send("DELETE", f"/v1/tokens/{quote(token, safe='')}", None, 0.0)

    def quotas(self) -> tuple[Usage, ...]:
        """Return quotas of projects and their usage."""
        return self.call("GET", "/v1/quotas", api.QuotasAnswer).usages

    def set_quota(self, project: str, quota: Quota) -> None:
        """Set a project's quota, or the `DEFAULT` quota. Admins only."""
        self.call("PUT", f"/v1/quotas/{quote(project, safe='')}", Quota, quota)

    def note_bytes(self, measured: Mapping[str, int]) -> tuple[str, ...] | None:
        """Report bytes of experiments on volumes. Controller only.

        Returns:
            Experiments with reported bytes; `None` if nothing is counted here.
        """
        found = tuple(api.ExperimentBytes(name=name, bytes=number) for name, number in measured.items())
        request = api.BytesRequest(measured=found)
        answer = self.call("POST", "/v1/bytes", api.BytesAnswer, request)
        return answer.known if answer.is_counted else None

    def make_sign_in_code(self, name: str = "") -> api.SignInCode:
        """Make a one-time code that signs a browser in with the caller's rights.

        Args:
            name: name for commands on the page, on clusters without users.

        Raises:
            ForbiddenError: the caller is a service, or may not read.
        """
        return self.call("POST", "/v1/sign-in-codes", api.SignInCode, api.SignInCodeRequest(name=name))

    def redeem_sign_in_code(self, code: str, *, is_preview: bool = False) -> api.SignedIn:
        """Redeem a one-time code and return its owner. Only the dispatcher may.

        Args:
            is_preview: True to return the owner and keep the code.

        Raises:
            NotFoundError: the code is unknown or expired.
            ConflictError: the code was used.
        """
        path, request = "/v1/sign-in-codes/redeem", api.RedeemRequest(code=code, is_preview=is_preview)
        body = request.model_dump_json().encode()
        content = self.send("POST", path, body, 0.0, {api.ONCE: uuid.uuid4().hex})
        return self.answered(api.SignedIn, "POST", path, content)

    def end_session(self, session: str) -> None:
        """End a sign-in session, by its id. Only the dispatcher may."""
        self.send("DELETE", f"/v1/sessions/{quote(session, safe='')}", None, 0.0)

    def has_session_ended(self, session: str) -> bool:
        """True if `end_session` was called for this id. Only the dispatcher may ask."""
        return self.call("GET", f"/v1/sessions/{quote(session, safe='')}", api.SessionAnswer).has_ended

    def note_audit(self, what: str) -> None:
        """Add an audit entry for the dispatcher's user."""
        self.send("POST", "/v1/audit", api.AuditRequest(what=what).model_dump_json().encode(), 0.0)
