"""One-time codes that sign a browser in: made by people, redeemed once by the dispatcher."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from cerebro.contract.accounts.identity import Role, Scope, operator_word
from cerebro.contract.rest.api import SignedIn, SignInCode
from cerebro.errors import ConflictError, NotFoundError
from kvs_api.accounts.tokens import MAX_OPEN_CODES
from kvs_api.store.store import Store
from tests.kvs_api.real import Service
from tests.kvs_api.users.people import OPERATOR, SERVICES, Place

DISPATCHER = SERVICES[Role.DISPATCHER]
REDEEM = "POST /v1/sign-in-codes/redeem"


def made(place: Place, secret: str) -> SignInCode:
    """Make a code with a token."""
    answer = place.ask(secret, "POST /v1/sign-in-codes", {})
    assert answer.status_code == 200, answer.text
    return SignInCode.model_validate_json(answer.data)


def test_a_code_names_the_token_that_made_it(place: Place) -> None:
    """So a session has the token's scopes, not the owner's, and ends with the token."""
    token = place.made(name="ada", role=Role.ADMIN, scopes=(Scope.READ,))
    code = made(place, token.token).code
    redeemed = place.ask(DISPATCHER, REDEEM, {"code": code})
    assert SignedIn.model_validate_json(redeemed.data).acts_for == f"token {token.record.id}"
    operator = place.ask(DISPATCHER, REDEEM, {"code": made(place, OPERATOR).code})
    assert SignedIn.model_validate_json(operator.data).acts_for == operator_word(OPERATOR)


def test_a_token_that_may_not_read_makes_no_code(place: Place) -> None:
    token = place.made(name="ada", role=Role.MEMBER, scopes=(Scope.TOKENS,)).token
    assert place.ask(token, "POST /v1/sign-in-codes", {}).status_code == 403


def test_a_code_works_once(place: Place) -> None:
    code = made(place, place.person("ada")).code
    assert place.ask(DISPATCHER, REDEEM, {"code": code}).status_code == 200
    again = place.ask(DISPATCHER, REDEEM, {"code": code})
    assert (again.status_code, "used already" in again.text) == (409, True)


def test_a_preview_keeps_the_code(place: Place) -> None:
    """It has the same errors as the use."""
    code = made(place, place.person("ada")).code
    preview = {"code": code, "is_preview": True}
    for _ in range(2):
        answer = place.ask(DISPATCHER, REDEEM, preview)
        assert SignedIn.model_validate_json(answer.data).owner == "ada"
    assert place.ask(DISPATCHER, REDEEM, {"code": code}).status_code == 200
    again = place.ask(DISPATCHER, REDEEM, preview)
    assert (again.status_code, "used already" in again.text) == (409, True)
    assert place.ask(DISPATCHER, REDEEM, preview | {"code": "A" * 43}).status_code == 404


def test_each_use_is_in_the_audit_list(place: Place) -> None:
    """Once, with the token that made the link; previews and refused uses are not."""
    token = place.made(name="ada", role=Role.MEMBER)
    codes = [made(place, secret).code for secret in (token.token, OPERATOR)]
    for code in codes:
        place.ask(DISPATCHER, REDEEM, {"code": code, "is_preview": True})
        for _ in range(2):
            place.ask(DISPATCHER, REDEEM, {"code": code})
    uses = [entry for entry in place.audited() if "sign-in link" in entry[1]]
    assert sorted(what for _, what in uses) == [
        "a sign-in link of the cluster's token was used",
        f"a sign-in link of token {token.record.id} was used",
    ]


def test_a_token_has_a_limited_number_of_open_codes(place: Place) -> None:
    """A further one ends the oldest; used ones and other tokens' do not count."""
    ada, bob = place.person("ada"), place.person("bob")
    of_bob = made(place, bob).code
    used = made(place, ada).code
    place.ask(DISPATCHER, REDEEM, {"code": used})
    codes = [made(place, ada).code for _ in range(MAX_OPEN_CODES + 1)]
    answers = [place.ask(DISPATCHER, REDEEM, {"code": code}).status_code for code in [*codes, of_bob]]
    assert answers == [404] + [200] * (MAX_OPEN_CODES + 1)


def test_a_repeated_call_gets_the_same_answer(place: Place) -> None:
    """A dispatcher that lost the answer asks again with the same key."""
    owner = SignedIn(acts_for="token 0")
    code = place.store.make_sign_in_code(owner).code
    assert [place.store.redeem_sign_in_code(code, "a-call") for _ in range(2)] == [owner, owner]
    with pytest.raises(ConflictError, match="used already"):
        place.store.redeem_sign_in_code(code, "another-call")


def test_of_many_simultaneous_calls_one_wins(service: Service, place: Place) -> None:
    """Whichever process of the dispatcher redeems first."""
    stores = [Store(service.database.url) for _ in range(8)]

    def redeem(store: Store, code: str) -> bool:
        try:
            store.redeem_sign_in_code(code, f"call-{id(store)}")
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(len(stores)) as pool:
        for _ in range(20):
            code = place.store.make_sign_in_code(SignedIn()).code
            assert sum(pool.map(redeem, stores, [code] * len(stores))) == 1
    for store in stores:
        store.close()


@pytest.mark.parametrize("is_used", [False, True])
def test_a_code_expires(service: Service, place: Place, is_used: bool) -> None:
    """Within ten minutes; the mark of a used code lasts as long as the code."""
    code = place.store.make_sign_in_code(SignedIn()).code
    if is_used:
        place.store.redeem_sign_in_code(code, "a-call")
    with redis.Redis.from_url(service.database.url) as client:
        keys = sorted(client.keys("cerebro:*:sign-in:*"), key=len)
        lives = [int(client.ttl(key)) for key in keys]
        assert all(0 < each <= 600 for each in lives)
        assert lives == sorted(lives)
        client.expire(keys[0], 0)
    with pytest.raises(NotFoundError, match="expired"):
        place.store.redeem_sign_in_code(code, "another-call")


@pytest.mark.parametrize("code", ["", "guess", "A" * 43, "*", "\u00e9"])
def test_an_unknown_code_is_refused(place: Place, code: str) -> None:
    """A code of another cluster is unknown, too."""
    made(place, OPERATOR)
    assert place.ask(DISPATCHER, REDEEM, {"code": code}).status_code == 404


def test_the_database_holds_only_a_hash(service: Service, place: Place) -> None:
    """A copy of the database opens no page. A code has 256 random bits."""
    codes = {made(place, OPERATOR).code for _ in range(20)}
    assert len(codes) == 20
    assert all(len(code) == 43 for code in codes)
    with redis.Redis.from_url(service.database.url) as client:
        stored = [(key, client.get(key)) for key in client.keys("cerebro:*:sign-in:*")]
    assert len(stored) == 20
    assert not any(code in str(stored) for code in codes)
