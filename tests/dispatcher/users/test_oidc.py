"""OIDC sign-in: the dispatcher verifies signature and claims of each ID token."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebro.contract.accounts.identity import Role
from cerebro.errors import ClusterError
from dispatcher.access.oidc import IdTokenError, IdTokens, OidcUnavailableError
from dispatcher.access.oidc_keys import FRESH_S
from dispatcher.settings import Settings
from tests.dispatcher.fakes import Clock
from tests.dispatcher.stories import NOW
from tests.dispatcher.users.issuer import AUDIENCE, Issuer, issuing, jwt
from tests.dispatcher.users.signed import Signed, signed
from tests.kvs_api.real import Service
from tests.kvs_api.users.people import OPERATOR

LOCAL = "http://127.0.0.1:7080"


@pytest.fixture(scope="module")
def shared_issuer() -> Iterator[Issuer]:
    with issuing() as provider:
        yield provider


@pytest.fixture
def issuer(shared_issuer: Issuer) -> Issuer:
    shared_issuer.is_away = False
    shared_issuer.requests.clear()
    shared_issuer.changes.clear()
    for name in set(shared_issuer.keys) - {"first"}:
        del shared_issuer.keys[name]
    return shared_issuer


def checker(issuer: Issuer, **changes: Any) -> tuple[IdTokens, Clock, Clock]:
    """A token checker that trusts the issuer, with manual clocks."""
    clock, monotonic = Clock(), Clock()
    return IdTokens(issuer.oidc(**changes), clock=clock, monotonic=monotonic), clock, monotonic


# --- which tokens are believed -----------------------------------------------------------------------


def test_a_valid_token_identifies_its_user(issuer: Issuer) -> None:
    """Name, projects and the highest role of all groups. A token is verified once."""
    tokens, _, _ = checker(issuer)
    token = issuer.token(groups=["researchers", "writers", "unknown", "readers"])
    known, is_new = tokens.verify(token)
    who = known.principal
    assert (who.name, who.role, who.projects, who.kind) == (
        "ada@example.org", Role.MEMBER, ("vision", "text"), "person",
    )  # fmt: skip
    assert (is_new, tokens.verify(token)[1]) == (True, False)
    assert issuer.requests == ["/.well-known/openid-configuration", "/keys"]
    assert known.acts_for.isascii()


@pytest.mark.parametrize(
    "claims",
    [
        {"azp": AUDIENCE},
        {"aud": [AUDIENCE]},
        {"aud": [AUDIENCE, "another"], "azp": AUDIENCE},
        {"typ": "ID"},
        {"token_use": "id"},
        {"header": {"typ": "jwt"}},
        {"header": {"typ": None}},
        {"iat": NOW + 20},
    ],
)
def test_a_token_with_optional_claims_is_accepted(issuer: Issuer, claims: dict[str, Any]) -> None:
    """Optional claims are accepted."""
    tokens, _, _ = checker(issuer)
    assert tokens.verify(issuer.token(**claims))[0].principal.name == "ada@example.org"


def test_the_subject_identifies_a_person(issuer: Issuer) -> None:
    """The identity is the subject: a renamed person stays the same, and another person with the old name does not."""
    tokens, _, _ = checker(issuer)

    def identity(**claims: Any) -> str:
        return tokens.verify(issuer.token(**claims))[0].principal.identity

    assert identity(sub="1") == identity(sub="1", email="lovelace@example.org")
    assert identity(sub="1") != identity(sub="2")
    assert re.fullmatch("oidc:[0-9a-f]{32}", identity(sub="1"))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://elsewhere.example.org"}, "iss is not"),
        ({"aud": "another-client"}, "aud is not 'cerebro'"),
        ({"aud": [AUDIENCE, "another"], "azp": "another"}, "azp is 'another'"),
        ({"exp": NOW - 60}, "exp was 60 s ago"),
        ({"azp": "another"}, "azp is 'another'"),
        ({"aud": [AUDIENCE, "another"]}, "azp none of them"),
        ({"exp": "soon"}, "exp"),
        ({"exp": True}, "exp must be a number"),
        ({"exp": float("nan")}, "exp must be a number"),
        ({"exp": float("inf")}, "exp must be a number"),
        ({"exp": 10**400}, "exp must be a number"),
        ({"nbf": float("nan")}, "nbf must be a number"),
        ({"without": "iat"}, "claim iat is missing"),
        ({"iat": NOW + 600}, "iat is in 600 s"),
        ({"iat": "now"}, "iat must be a number"),
        ({"iat": NOW + 20, "exp": NOW + 10}, "exp is before iat"),
        ({"header": {"typ": "at+jwt"}}, "typ is 'at+jwt'"),
        ({"header": {"typ": "logout+jwt"}}, "typ is 'logout+jwt'"),
        ({"header": {"crit": ["exp"]}}, "crit"),
        ({"typ": "Bearer"}, "typ is 'Bearer', expected 'ID'"),
        ({"typ": "Refresh"}, "typ is 'Refresh'"),
        ({"token_use": "access"}, "token_use is 'access'"),
        ({"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}, "logout token"),
        ({"sub": ""}, "sub must be a text"),
        ({"email": "controller"}, "is reserved"),
        ({"email": "\u0430dmin"}, "looks like 'admin'"),
        ({"nbf": NOW + 600}, "nbf is in 600 s"),
        ({"without": "exp"}, "claim exp is missing"),
        ({"without": "aud"}, "claim aud is missing"),
        ({"without": "sub"}, "claim sub is missing"),
        ({"without": "groups"}, "claim groups is missing"),
        ({"groups": None}, "claim groups is missing"),
        ({"groups": [1]}, "claim groups is missing"),
        ({"groups": []}, "none of the groups in the claim groups has a role here"),
        ({"groups": ["strangers"]}, "has a role here (auth.oidc.groups): strangers"),
        ({"without": "email"}, "claim email is missing"),
        ({"email": " "}, "claim email is missing"),
        ({"email": "a\x00b"}, "claim email"),
        ({"email_verified": False}, "email_verified is not true"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(issuer: Issuer, claims: dict[str, Any], why: str) -> None:
    """The error names the claim and the expected value."""
    tokens, _, _ = checker(issuer)
    with pytest.raises(IdTokenError, match=re.escape(why)):
        tokens.verify(issuer.token(**claims))


def _encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def test_a_token_without_a_signature_is_refused(issuer: Issuer) -> None:
    """``alg: none`` in any spelling, with the claims of a valid token."""
    tokens, _, _ = checker(issuer)
    claims = issuer.token().split(".")[1]
    for algorithm in ("none", "None", "NONE", "", None):
        token = f"{_encoded({'alg': algorithm, 'kid': 'first'})}.{claims}."
        with pytest.raises(IdTokenError, match=r"alg is|cannot be read"):
            tokens.verify(token)


def test_a_signature_by_the_public_key_is_refused(issuer: Issuer) -> None:
    """HMAC with the provider's public key, which is known to all, is refused."""
    tokens, _, _ = checker(issuer)
    claims = issuer.token().split(".")[1]
    for identity in ("first", "secret"):
        token = f"{_encoded({'alg': 'HS256', 'kid': identity})}.{claims}.{'A' * 43}"
        with pytest.raises(IdTokenError, match="alg is 'HS256'"):
            tokens.verify(token)


def test_a_signature_by_a_foreign_key_is_refused(issuer: Issuer) -> None:
    """A foreign signature under the id of a valid key is refused."""
    tokens, _, _ = checker(issuer)
    eve = Issuer(address=issuer.address)
    with pytest.raises(IdTokenError, match="signature is wrong"):
        tokens.verify(eve.token(groups=["root"]))
    head, claims, signature = issuer.token().split(".")
    other = json.loads(base64.urlsafe_b64decode(claims + "=="))
    with pytest.raises(IdTokenError, match="signature is wrong"):
        tokens.verify(f"{head}.{_encoded(other | {'groups': ['root']})}.{signature}")


@pytest.mark.parametrize("token", ["ey..", "ey.a.b", "eyJ.eyJ.x", "ey" + "a" * 20_000 + ".b.c"])
def test_malformed_tokens_are_refused(issuer: Issuer, token: str) -> None:
    """Tokens of any length."""
    tokens, _, _ = checker(issuer)
    with pytest.raises(IdTokenError):
        tokens.verify(token)


# --- its keys ----------------------------------------------------------------------------------------


def test_known_keys_stay_valid_while_the_provider_is_unavailable(issuer: Issuer) -> None:
    """Known keys still verify tokens. Without known keys the error says so, and the next attempt asks again."""
    tokens, _, monotonic = checker(issuer)
    issuer.is_away = True
    with pytest.raises(OidcUnavailableError, match="answered 503"):
        tokens.verify(issuer.token())
    issuer.is_away = False
    monotonic.now += 31
    tokens.verify(issuer.token())
    issuer.is_away = True
    monotonic.now += 7200
    tokens.verify(issuer.token(sub="2"))


def test_a_new_key_is_fetched_when_it_is_used(issuer: Issuer) -> None:
    """Tokens with unknown key ids trigger at most two requests a minute."""
    tokens, _, monotonic = checker(issuer)
    tokens.verify(issuer.token())
    issuer.add("second")
    with pytest.raises(IdTokenError, match="kid is 'second'"):
        tokens.verify(issuer.token(key="second"))
    monotonic.now += 31
    tokens.verify(issuer.token(key="second"))
    count = len(issuer.requests)
    key = issuer.keys["first"]
    for number in range(20):
        made_up = jwt.encode({"sub": "1"}, key, algorithm="RS256", headers={"kid": f"made-up-{number}"})
        with pytest.raises(IdTokenError, match="kid is"):
            tokens.verify(made_up)
    assert len(issuer.requests) == count


def test_a_withdrawn_key_is_refused(issuer: Issuer) -> None:
    """Within a few minutes; tokens verified before are refused, too. Other keys stay valid."""
    tokens, _, monotonic = checker(issuer)
    issuer.add("second")
    first, second = issuer.token(), issuer.token(key="second")
    tokens.verify(first)
    tokens.verify(second)
    del issuer.keys["second"]
    monotonic.now += FRESH_S + 1
    with pytest.raises(IdTokenError, match="kid is 'second'"):
        tokens.verify(second)
    assert tokens.verify(first)[1] is False
    assert FRESH_S <= 300


def test_a_changed_key_under_the_same_id_is_another_key(issuer: Issuer) -> None:
    tokens, _, monotonic = checker(issuer)
    issuer.add("second")
    old = issuer.token(key="second")
    tokens.verify(old)
    issuer.add("second")
    monotonic.now += FRESH_S + 1
    with pytest.raises(IdTokenError, match="signature is wrong"):
        tokens.verify(old)
    tokens.verify(issuer.token(key="second"))


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_a_key_without_an_algorithm_accepts_all_algorithms_of_its_type(
    issuer: Issuer, algorithm: str
) -> None:
    """Keys of Entra ID are like this."""
    issuer.changes["first"] = {"alg": None}
    tokens, _, _ = checker(issuer)
    assert tokens.verify(issuer.token(algorithm=algorithm))[0].principal.name == "ada@example.org"


@pytest.mark.parametrize(
    ("changes", "algorithm", "why"),
    [
        ({}, "RS512", "its alg is 'RS256'"),
        ({"use": "enc"}, "RS256", "its use is 'enc'"),
        ({"key_ops": ["encrypt"]}, "RS256", "key_ops"),
        ({"key_ops": "verify"}, "RS256", "key_ops"),
        ({"e": "AQ", "alg": None}, "RS256", "exponent"),
        ({"kty": "EC", "crv": "P-256", "alg": None}, "RS256", "its type is 'P-256'"),
        ({"n": None}, "RS256", "0 bits"),
    ],
)
def test_a_key_for_another_use_is_refused(
    issuer: Issuer, changes: dict[str, Any], algorithm: str, why: str
) -> None:
    """A key for another algorithm is refused, too."""
    issuer.changes["first"] = changes
    tokens, _, _ = checker(issuer)
    with pytest.raises(IdTokenError, match=re.escape(why)):
        tokens.verify(issuer.token(algorithm=algorithm))


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_a_short_key_is_refused(issuer: Issuer) -> None:
    """A short key can be broken."""
    issuer.add("short", 1024)
    tokens, _, _ = checker(issuer)
    with pytest.raises(IdTokenError, match="has 1024 bits, expected 2048 or more"):
        tokens.verify(issuer.token(key="short"))


def test_a_token_without_a_key_id_is_checked_with_all_keys(issuer: Issuer) -> None:
    """Providers with one key may omit the key id."""
    issuer.add("second")
    tokens, _, _ = checker(issuer)
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    assert tokens.verify(jwt.encode(claims, issuer.keys["second"], algorithm="RS256"))[0].principal.name
    with pytest.raises(IdTokenError, match="signature is wrong"):
        tokens.verify(jwt.encode(claims, Issuer(address="").keys["first"], algorithm="RS256"))


@pytest.mark.parametrize("found", [{"issuer": "https://elsewhere.example.org"}, {"issuer": None}])
def test_a_discovery_document_of_another_issuer_is_refused(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]
) -> None:
    """Required by OpenID Connect Discovery 1.0, section 4.3."""
    document = Issuer.document
    monkeypatch.setattr(Issuer, "document", lambda own, path: (document(own, path) or {}) | found)
    tokens, _, _ = checker(issuer)
    with pytest.raises(OidcUnavailableError, match="names the issuer"):
        tokens.verify(issuer.token())


# --- on the page -------------------------------------------------------------------------------------


@pytest.fixture
def place(users_service: Service, issuer: Issuer) -> Iterator[Signed]:
    users_service.database.empty()
    with signed(users_service, oidc=issuer.oidc()) as signed_place:
        signed_place.clock.now = NOW
        yield signed_place


def send_request(place: Signed, token: str, path: str = "/experiments", **more: Any) -> Any:
    """Send a request as a browser behind the proxy does."""
    headers = {"Accept": "text/html", "Authorization": f"Bearer {token}"}
    return place.app.test_client().get(path, headers=headers, base_url=LOCAL, **more)


def test_a_user_of_the_provider_is_signed_in(place: Signed, issuer: Issuer) -> None:
    """With the name and rights from the token, and one audit entry."""
    page = send_request(place, issuer.token()).text
    assert "ada@example.org" in page
    send_request(place, issuer.token())
    signed_in = [(by, what) for by, what in place.audited() if "signed in" in what]
    assert [by for by, _ in signed_in] == ["ada@example.org"]


def test_users_of_the_provider_count_as_viewers(place: Signed, issuer: Issuer) -> None:
    """One browser is one viewer in `cerebro_dispatcher_viewers`."""
    send_request(place, issuer.token())
    assert place.app.extensions["cerebro-metrics"].viewers() == 1


def test_commands_behind_the_proxy_need_the_form_token(place: Signed, issuer: Issuer) -> None:
    """Browsers send the proxy's cookie with requests of other sites, too. The log has the provider's name."""
    place.experiment(place.person("bob", Role.MEMBER, "vision"), "digits")
    client = place.app.test_client()
    headers = {"Accept": "text/html", "Authorization": f"Bearer {issuer.token()}"}
    fields = {"action": "stop_run", "run": "etl-1"}
    path = "/experiments/digits/actions"
    assert client.post(path, data=fields, headers=headers, base_url=LOCAL).status_code == 403
    found = re.search(
        r'name="csrf" value="([^"]+)"', client.get("/start", headers=headers, base_url=LOCAL).text
    )
    assert found
    sent = fields | {"csrf": found[1]}
    assert client.post(path, data=sent, headers=headers, base_url=LOCAL).status_code == 303
    assert place.client().events("digits")[-1].by == "ada@example.org"  # type: ignore[union-attr]
    eve = {**headers, "Authorization": f"Bearer {issuer.token(email='eve@example.org')}"}
    assert client.post(path, data=sent, headers=eve, base_url=LOCAL).status_code == 403


def test_a_refused_token_is_reported_and_logged(
    place: Signed, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    """401 with the claim's name, on the page and in the log."""
    with caplog.at_level(logging.WARNING):
        answer = send_request(place, issuer.token(without="groups"))
    assert answer.status_code == 401
    assert "the claim groups is missing" in answer.text
    assert "the claim groups is missing" in caplog.text
    assert send_request(place, issuer.token(groups=["strangers"])).status_code == 401
    for path in ("/api/views/experiments", "/fragments/experiments", "/tensorboard"):
        assert send_request(place, issuer.token(groups=["strangers"]), path).status_code == 401, path


def test_the_cluster_token_signs_in_while_the_provider_is_unavailable(place: Signed, issuer: Issuer) -> None:
    """Users see the reason; the operator signs in without the proxy."""
    issuer.is_away = True
    answer = send_request(place, issuer.token())
    assert (answer.status_code, "the cluster&#39;s own token" in answer.text) == (503, True)
    assert place.browser(OPERATOR).get("/experiments").status_code == 200


def test_programs_need_tokens_of_the_platform(place: Signed, issuer: Issuer) -> None:
    """Below /api the answer to an ID token names the accepted tokens. A platform token works behind the proxy."""
    headers = {"Authorization": f"Bearer {issuer.token()}"}
    answer = place.app.test_client().get("/api/v1/queue", headers=headers)
    assert (answer.status_code, "page Account" in answer.text) == (401, True)
    platform_token = {"Authorization": f"Bearer {place.person('ada')}"}
    assert place.app.test_client().get("/api/v1/queue", headers=platform_token).status_code == 200


def test_users_of_the_provider_can_create_tokens(place: Signed, issuer: Issuer) -> None:
    """With at most the rights from the provider."""
    client = place.app.test_client()
    headers = {"Accept": "text/html", "Authorization": f"Bearer {issuer.token()}"}
    page = client.get("/account", headers=headers, base_url=LOCAL).text
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found
    fields = {"csrf": found[1], "label": "nightly", "days": "30"}
    page = client.post("/account/tokens", data=fields, headers=headers, base_url=LOCAL).text
    match = re.search(r"ck_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", page)
    assert match
    who = place.client(match[0]).whoami()
    assert (who.name, who.role, who.projects, who.kind) == (
        "ada@example.org", Role.MEMBER, ("vision",), "program",
    )  # fmt: skip


# --- settings ----------------------------------------------------------------------------------------

ENVIRONMENT = {
    "CEREBRO_TOKEN": "t" * 40,
    "CEREBRO_SERVER": "http://127.0.0.1:7070",
    "CEREBRO_AUTH_MODE": "users",
    "CEREBRO_OIDC_ISSUER": "https://issuer.example.org/",
    "CEREBRO_OIDC_AUDIENCE": "cerebro",
    "CEREBRO_OIDC_GROUPS": '{"researchers": {"role": "member", "projects": ["vision"]}}',
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"CEREBRO_OIDC_AUDIENCE": ""}, "CEREBRO_OIDC_AUDIENCE is not set"),
        ({"CEREBRO_OIDC_ISSUER": "issuer.example.org"}, "CEREBRO_OIDC_ISSUER is"),
        ({"CEREBRO_OIDC_GROUPS": ""}, "CEREBRO_OIDC_GROUPS is empty"),
        ({"CEREBRO_OIDC_GROUPS": '{"a": {"role": "worker"}}'}, "CEREBRO_OIDC_GROUPS"),
        ({"CEREBRO_OIDC_GROUPS": "{"}, "CEREBRO_OIDC_GROUPS"),
        ({"CEREBRO_OIDC_HEADER": "no header"}, "CEREBRO_OIDC_HEADER is"),
        (
            {"CEREBRO_AUTH_HEADER": "X-Forwarded-User", "CEREBRO_AUTH_PROXIES": "10.0.0.1"},
            "a bare header",
        ),
        ({"CEREBRO_AUTH_MODE": "oidc"}, "expected token or users"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, str], why: str) -> None:
    """The message names the variable."""
    with pytest.raises(ClusterError, match=re.escape(why)):
        Settings.from_environment(ENVIRONMENT | changes)


def test_the_documented_provider_fits_its_settings(issuer: Issuer) -> None:
    """Realm, variables and proxy name the same client, and a token with Keycloak's claims is accepted."""
    page = (Path(__file__).parents[3] / "docs" / "users.md").read_text()
    realm = json.loads(page.split("```json\n")[1].split("```")[0])
    given = dict(re.findall(r"^export (CEREBRO_\w+)='?(.*?)'?$", page, re.MULTILINE))
    oidc = Settings.from_environment(ENVIRONMENT | given).oidc
    assert oidc is not None
    (client,), (user,) = realm["clients"], realm["users"]
    assert client["clientId"] == oidc.audience
    assert oidc.issuer.endswith(f"/realms/{realm['realm']}")
    for option in (
        f"--oidc-issuer-url={oidc.issuer} ", f"--client-id={oidc.audience} ", f"--client-secret={client['secret']} ",
        f"--redirect-url={client['redirectUris'][0]} ",
    ):  # fmt: skip
        assert option in page
    assert {group["name"] for group in realm["groups"]} == set(oidc.groups)
    tokens, _, _ = checker(issuer, audience=oidc.audience, groups=oidc.groups)
    claims = {
        "aud": oidc.audience, "azp": oidc.audience, "typ": "ID", "sub": "f7a9", "acr": "1", "sid": "s", "at_hash": "h",
        "auth_time": NOW, "jti": "j", "email": user["email"], "email_verified": user["emailVerified"],
        "preferred_username": user["username"], "groups": user["groups"],
    }  # fmt: skip
    who = tokens.verify(issuer.token(**claims))[0].principal
    assert (who.name, who.role, who.projects) == ("ada@example.org", Role.MEMBER, ("vision",))
