"""Views of the caller's identity, tokens, quotas, sign-in sessions and the audit list.

First class of the chain that ends in `kvs_api.api.views.Views`; the later ones call `_check_may_change` and `_note`.
`kvs_api.api.app` has checked the scope of the route before a view runs. Rules: `cerebro.contract.accounts.identity`.
"""

from __future__ import annotations

import secrets

from starlette.responses import Response

from cerebro import errors
from cerebro.contract.accounts.identity import (
    OPERATOR_WORD,
    Principal,
    Scope,
    TokenRequest,
    operator_word,
)
from cerebro.contract.accounts.quotas import Quota
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.rest import api
from kvs_api.api.call import Call, answer, checked_name, done
from kvs_api.store.store import Store

_NO_USERS = "this cluster has no users (auth.mode: token), so it has neither tokens nor quotas of users"


class AccountViews:
    """One method for each entry of `STORE` about tokens, quotas, sessions and audit notes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def whoami(self, call: Call) -> Response:
        """Return the caller's principal."""
        return answer(_require_principal(call))

    def tokens(self, call: Call) -> Response:
        """Return the caller's tokens."""
        return answer(api.TokensAnswer(tokens=self._store.tokens(_require_principal(call))))

    def make_token(self, call: Call) -> Response:
        """Make a token with at most the caller's rights."""
        request = call.body(TokenRequest)
        return answer(self._store.make_token(request, _require_principal(call)))

    def revoke_token(self, call: Call, token: str) -> Response:
        """Revoke a token and all tokens made with it."""
        self._store.revoke_token(token, _require_principal(call))
        return done()

    def quotas(self, call: Call) -> Response:
        """Return quotas and their use."""
        return answer(api.QuotasAnswer(usages=self._store.usages()))

    def set_quota(self, call: Call, name: str) -> Response:
        """Set a project's quota."""
        quota, who = call.body(Quota), _require_principal(call)
        self._store.set_quota(checked_name(name), quota)
        fields = ", ".join(f"{field} {value}" for field, value in quota.model_dump(exclude_none=True).items())
        self._store.note(who.name, f"set the quota of {name}: {fields or 'none'}")
        return answer(quota)

    def note_bytes(self, call: Call) -> Response:
        """Record the bytes of experiments on volumes; ignored on clusters without users."""
        request = call.body(api.BytesRequest)
        if not self._store.has_users:
            return answer(api.BytesAnswer(is_counted=False))
        known = self._store.note_bytes({each.name: each.bytes for each in request.measured})
        return answer(api.BytesAnswer(is_counted=True, known=known))

    def note_audit(self, call: Call) -> Response:
        """Add a user's action at the dispatcher to the audit list."""
        request, who = call.body(api.AuditRequest), call.principal
        self._store.note(who.name if who is not None else "", request.what)
        return done()

    def make_sign_in_code(self, call: Call) -> Response:
        """Make a one-time code that signs a browser in as the caller."""
        owner = call.principal.name if call.principal is not None else ""
        signed_in = api.SignedIn(
            acts_for=_session_identity(call), name=call.body(api.SignInCodeRequest).name, owner=owner
        )
        return answer(self._store.make_sign_in_code(signed_in))

    def redeem_sign_in_code(self, call: Call) -> Response:
        """Redeem a one-time code, unless for a preview; return its owner."""
        request = call.body(api.RedeemRequest)
        if request.is_preview:
            return answer(self._store.sign_in_code_owner(request.code))
        return answer(self._store.redeem_sign_in_code(request.code, call.identity() or secrets.token_hex(16)))

    def session(self, call: Call, name: str) -> Response:
        """Return whether a sign-in session has ended."""
        return answer(api.SessionAnswer(has_ended=self._store.has_session_ended(checked_name(name))))

    def end_session(self, call: Call, name: str) -> Response:
        """End a sign-in session."""
        self._store.end_session(checked_name(name))
        return done()

    def _note(self, call: Call, what: str) -> None:
        """Add the caller's action to the audit list, on clusters with users."""
        if (who := call.principal) is not None:
            self._store.note(who.name, what)

    def _check_may_change(self, call: Call, name: str) -> ExperimentRecord | None:
        """Return an experiment's record if the caller may change it.

        `None` if no check is needed.

        Raises:
            ForbiddenError: the caller may not.
            NotFoundError: the experiment does not exist.
        """
        who = call.principal
        if who is None:
            return None
        try:
            record = self._store.experiment(name)
        except errors.UnreadableError:
            if who.may(Scope.ADMINISTER):
                return None  # so that an admin can delete it
            raise
        if not who.is_in(record):
            raise errors.ForbiddenError(who.is_out_of(record))
        return record


def _session_identity(call: Call) -> str:
    """Return the value of `ACTS_FOR` for sessions with the caller's rights; empty on clusters without users.

    It names the caller's token, so a session has its rights and ends with it.

    Raises:
        ForbiddenError: the caller is a service, or has no token.
    """
    who = call.principal
    if who is None:
        return ""
    if who.kind != "service" and who.token:
        return f"token {who.token}"
    if who.kind != "service" and who.id == OPERATOR_WORD:
        return operator_word(call.request.headers.get("Authorization", "").partition(" ")[2])
    raise errors.ForbiddenError(f"{who.name} cannot make sign-in links: use the token of a person or program")


def _require_principal(call: Call) -> Principal:
    who = call.principal
    if who is None:
        raise errors.NotFoundError(_NO_USERS)
    return who
