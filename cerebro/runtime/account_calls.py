"""Calls to kvs_api about who one is, where there are users: `cerebro.runtime.kvs.KvsClient` has them."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from cerebro.contract import api
from cerebro.contract.identity import ACTS_FOR, MadeToken, Principal, TokenRecord, TokenRequest
from cerebro.contract.quotas import Quota, Usage
from cerebro.runtime.transport import Transport


class AccountCalls(Transport):
    """Calls about the caller, its tokens, quotas and sessions.

    Outside users mode, all calls except those about sessions raise `NotFoundError`.
    """

    def whoami(self, *, acts_for: str = "", token: str = "") -> Principal:
        """Who the caller is.

        Args:
            acts_for: the dispatcher's: who it is for whom it asks.
            token: another token than the client's own: whose it is.

        Raises:
            UnauthorizedError: the token has ended.
        """
        headers = {ACTS_FOR: acts_for} if acts_for else {}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        content = self.send("GET", "/v1/whoami", None, 0.0, headers)
        return self.answered(Principal, "GET", "/v1/whoami", content)

    def tokens(self, *, acts_for: str = "") -> tuple[TokenRecord, ...]:
        """The caller's tokens, newest first; an admin's: all."""
        headers = {ACTS_FOR: acts_for} if acts_for else {}
        content = self.send("GET", "/v1/tokens", None, 0.0, headers)
        return self.answered(api.TokensAnswer, "GET", "/v1/tokens", content).tokens

    def make_token(self, request: TokenRequest) -> MadeToken:
        """Make a token; the answer alone has it. Sent twice it makes two, of which one is never shown.

        Raises:
            ForbiddenError: it would do more than the caller may.
            ConflictError: its owner has too many.
        """
        return self.call("POST", "/v1/tokens", MadeToken, request)

    def revoke_token(self, token: str) -> None:
        """Revoke a token, by its id, and all that were made with it; `NotFoundError` if one has no such token."""
        self.send("DELETE", f"/v1/tokens/{quote(token, safe='')}", None, 0.0)

    def quotas(self) -> tuple[Usage, ...]:
        """Quotas of projects, and what they use."""
        return self.call("GET", "/v1/quotas", api.QuotasAnswer).usages

    def set_quota(self, project: str, quota: Quota) -> None:
        """An admin's: what a project may have, or `DEFAULT` for all that have none of their own."""
        self.call("PUT", f"/v1/quotas/{quote(project, safe='')}", Quota, quota)

    def note_bytes(self, measured: Mapping[str, int]) -> tuple[str, ...] | None:
        """The controller's: what experiments have on volumes.

        Returns:
            All that have something by what was told until now; `None`: nothing is counted here.
        """
        found = tuple(api.ExperimentBytes(name=name, bytes=number) for name, number in measured.items())
        asked = api.BytesRequest(measured=found)
        told = self.call("POST", "/v1/bytes", api.BytesAnswer, asked)
        return told.known if told.is_counted else None

    def end_session(self, session: str) -> None:
        """End a sign-in session, by its id. Only the dispatcher may."""
        self.send("DELETE", f"/v1/sessions/{quote(session, safe='')}", None, 0.0)

    def has_session_ended(self, session: str) -> bool:
        """True if `end_session` was called for this id. Only the dispatcher may ask."""
        return self.call("GET", f"/v1/sessions/{quote(session, safe='')}", api.SessionAnswer).has_ended

    def note_audit(self, what: str) -> None:
        """The dispatcher's: note what the one for whom it asks did there."""
        self.send("POST", "/v1/audit", api.AuditRequest(what=what).model_dump_json().encode(), 0.0)
