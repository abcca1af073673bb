"""Sign-in by a link with a one-time code, with users and without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cerebro.client.connection import author, sign_in_link
from cerebro.contract.accounts.identity import Role, Scope
from cerebro.contract.records import ExperimentRecord
from cerebro.errors import ForbiddenError
from dispatcher.app import create_app
from tests.dispatcher.fakes import Browser, settings
from tests.dispatcher.users.signed import LOCATORS, Signed, signed
from tests.kvs_api.bench import requested
from tests.kvs_api.real import TOKEN, Service
from tests.kvs_api.users.people import OPERATOR, SERVICES

PAGE = "http://127.0.0.1:7080"


def code_of(link: str) -> str:
    """Return the code in a link's fragment."""
    return link.partition("#")[2]


@pytest.fixture
def shared_token_app(service: Service) -> Iterator[Browser]:
    """A browser at a dispatcher without users."""
    store = service.client()
    yield Browser(create_app(settings(server=service.address, token=TOKEN), store))
    store.close()


def test_a_link_signs_in_with_the_rights_of_its_token(place: Signed) -> None:
    """A token with the scope `read` makes a link whose session only reads, although its owner is an admin."""
    place.experiment(OPERATOR, "digits")
    reads = place.made(name="ada", role=Role.ADMIN, scopes=(Scope.READ,))
    browser = Browser(place.app)
    link = sign_in_link(place.client(reads.token), PAGE, "/experiments/digits")
    path, _, code = link.removeprefix(PAGE).partition("#")
    fields = {"code": code, "next": "/experiments/digits"}
    asked = browser.post("/sign-in", fields, form=path)
    assert asked.status_code == 200
    answer = browser.post("/sign-in", fields | {"confirmed": "yes"}, form=path)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/experiments/digits")
    page = browser.get("/experiments/digits").text
    assert "ada" in page
    assert 'name="action"' not in page
    stop = {"action": "stop_run", "run": "etl-1"}
    assert browser.post("/experiments/digits/actions", stop, form="/experiments").status_code == 403
    assert any(
        what.startswith(f"signed in by a link of token {reads.record.id}") for _, what in place.audited()
    )


def test_a_session_ends_with_the_token_of_its_link(place: Signed) -> None:
    """A link of a revoked token is refused, too."""
    token = place.made(name="ada", role=Role.MEMBER)
    kvs = place.client(token.token)
    used, unused = (kvs.make_sign_in_code().code for _ in range(2))
    browser = Browser(place.app)
    assert browser.post("/sign-in", {"code": used, "confirmed": "yes"}).status_code == 303
    assert browser.get("/experiments").status_code == 200
    place.client().revoke_token(token.record.id)
    # kvs_api caches tokens for 2 s, so ask another process.
    with (
        Service(place.service.database, has_users=True, service_tokens=SERVICES, token=OPERATOR) as restarted,
        signed(restarted) as later,
    ):
        assert Browser(later.app).post("/sign-in", {"code": unused}).status_code == 401
        session = browser.client.get_cookie("cerebro-7080", "127.0.0.1")
        assert session is not None
        moved = Browser(later.app)
        moved.client.set_cookie("cerebro-7080", session.value, domain="127.0.0.1")
        assert moved.get("/experiments").status_code == 303


def test_a_strangers_link_signs_nobody_in_unnoticed(place: Signed) -> None:
    """The page names the link's user first; a visitor who cancels stays signed out, and the link unused."""
    code = place.client(place.made(name="mallory", role=Role.MEMBER).token).make_sign_in_code().code
    browser = Browser(place.app)
    asked = browser.post("/sign-in", {"code": code})
    assert asked.status_code == 200
    assert "This link signs this browser in as <strong>mallory</strong> (member)" in asked.text
    assert "Set-Cookie" not in asked.headers or "mallory" not in asked.headers["Set-Cookie"]
    assert browser.get("/experiments").status_code == 303
    assert not any(who == "mallory" and "used" in what for who, what in place.audited())
    assert browser.post("/sign-in", {"code": code, "confirmed": "yes"}).status_code == 303
    assert browser.get("/experiments").status_code == 200


@pytest.mark.parametrize("service_token", list(SERVICES.values()))
def test_services_make_no_links(place: Signed, service_token: str) -> None:
    with pytest.raises(ForbiddenError):
        sign_in_link(place.client(service_token), PAGE)


def test_a_link_works_once_and_says_how_to_make_another(shared_token_app: Browser, service: Service) -> None:
    code = service.client().make_sign_in_code().code
    assert shared_token_app.post("/sign-in", {"code": code}).status_code == 303
    other = Browser(shared_token_app.client.application)
    answer = other.post("/sign-in", {"code": code})
    assert answer.status_code == 401
    assert "was used already" in answer.text
    assert "cerebro open" in answer.text
    assert code not in answer.text


def test_of_two_browsers_at_the_same_moment_one_wins(service: Service) -> None:
    """Each is at its own process of the dispatcher."""
    stores = [service.client() for _ in range(2)]
    apps = [create_app(settings(server=service.address, token=TOKEN), store) for store in stores]

    def redeem(browser: Browser, form: str, code: str) -> int:
        return browser.send("/sign-in", {"csrf": form, "code": code}).status_code

    for _ in range(5):
        code = stores[0].make_sign_in_code().code
        browsers = [Browser(app) for app in apps]
        forms = [
            browser.get("/sign-in").text.partition('name="csrf" value="')[2][:64] for browser in browsers
        ]
        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(redeem, browsers, forms, [code] * 2)) == [303, 401]
    for store in stores:
        store.close()


def test_a_link_of_another_cluster_is_refused(shared_token_app: Browser, place: Signed) -> None:
    """The two clusters have different databases."""
    code = place.client().make_sign_in_code().code
    answer = shared_token_app.post("/sign-in", {"code": code})
    assert answer.status_code == 401
    assert "unknown here or has expired" in answer.text


def test_a_users_link_opens_no_page_that_has_no_users(place: Signed) -> None:
    """While `auth.mode` changes, the page would give it a session with the cluster's token."""
    viewer = place.made(name="eve", role=Role.VIEWER).token
    code = place.client(viewer).make_sign_in_code().code
    old = settings(server=place.service.address, token=SERVICES[Role.DISPATCHER])
    answer = Browser(create_app(old, place.store)).post("/sign-in", {"code": code})
    assert answer.status_code == 401
    assert "different auth.mode" in answer.text.replace("`", "")


def test_a_link_carries_the_login_name_without_users(shared_token_app: Browser, service: Service) -> None:
    """Commands on the page are logged under it."""
    kvs = service.client()
    sign_in = code_of(sign_in_link(kvs, PAGE))
    assert shared_token_app.post("/sign-in", {"code": sign_in}).status_code == 303
    kvs.create_experiment(ExperimentRecord(name="digits", locators=LOCATORS))
    kvs.append("digits", requested("etl-1"))
    stop = {"action": "stop_run", "run": "etl-1"}
    assert shared_token_app.post("/experiments/digits/actions", stop, form="/start").status_code == 303
    assert kvs.events("digits")[-1].by == author()  # type: ignore[union-attr]
    kvs.close()


def test_a_link_is_not_used_up_by_opening_its_address(shared_token_app: Browser, service: Service) -> None:
    """Previews and scanners request the address; the code is in its fragment and is not sent."""
    link = sign_in_link(service.client(), PAGE)
    path = link.removeprefix(PAGE).partition("#")[0]
    page = shared_token_app.get(path)
    assert page.status_code == 200
    assert page.headers["Referrer-Policy"] == "same-origin"
    assert page.headers["Cache-Control"] == "no-store"
    assert shared_token_app.post("/sign-in", {"code": code_of(link)}).status_code == 303


def test_a_signed_in_browser_goes_on_without_the_code(shared_token_app: Browser) -> None:
    """The new fragment keeps browsers from appending the code to the next address."""
    shared_token_app.post("/sign-in", {"token": TOKEN})
    assert shared_token_app.get("/sign-in?next=/cluster").headers["Location"] == "/cluster#main"


def test_codes_are_in_no_log(place: Signed, caplog: pytest.LogCaptureFixture) -> None:
    """Neither used nor refused ones, in the dispatcher and the store; nor in the audit list."""
    caplog.set_level(logging.DEBUG)
    code = place.client().make_sign_in_code().code
    for status in (303, 401):
        answer = Browser(place.app).post("/sign-in", {"code": code, "confirmed": "yes"})
        assert answer.status_code == status
    assert "sign-in refused" in caplog.text
    assert code not in caplog.text
    assert code not in str(place.audited())


def test_guessing_codes_is_slowed_down(place: Signed) -> None:
    """Wrong codes count as wrong tokens."""
    browser = Browser(place.app)
    answers = [browser.post("/sign-in", {"code": "A" * 43}).status_code for _ in range(6)]
    assert answers == [401] * 5 + [429]
