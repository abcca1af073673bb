"""Nobody gets in, and nothing is changed, without the token; whatever the route."""

from __future__ import annotations

import re
from ipaddress import ip_network

import pytest
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from dispatcher.guard import local_path
from tests.dispatcher.fakes import TOKEN, Bench, Browser, settings
from tests.dispatcher.stories import running_story

OPEN = {"health", "live", "sign_in", "static"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
OWN_SITE = {"Sec-Fetch-Site": "same-origin"}
LOCAL = "http://127.0.0.1:7080"


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.add(running_story())
    return bench


_EXAMPLES = {
    "name": "digits",
    "model": "m00",
    "path": "fit-1/m00/x.pt",
    "key": "digits",
    "volume": "logs",
    "figure": "curves",
    "filename": "style.css",
}


def address(rule: Rule) -> str:
    """A path that the rule matches."""
    return re.sub(
        r"<(?:(?P<kind>[a-z]+)(?:\([^)]*\))?:)?(?P<name>\w+)>",
        lambda found: "0" * 64 if found["kind"] == "string" else _EXAMPLES[found["name"]],
        rule.rule,
    )


def routes(bench: Bench) -> list[tuple[str, str, str]]:
    """Every method, path and endpoint of the app that is not open."""
    return [
        (method, address(rule), rule.endpoint)
        for rule in bench.app.url_map.iter_rules()
        if rule.endpoint not in OPEN
        for method in sorted(rule.methods or ())
    ]


def changing(bench: Bench) -> list[str]:
    """Every path of a page that takes something."""
    found = [path for method, path, _ in routes(bench) if method not in ("GET", "HEAD", "OPTIONS")]
    return sorted({path for path in found if not path.startswith("/api/")})


def test_only_few_routes_are_open(bench: Bench) -> None:
    """Whoever adds one has to say so here."""
    endpoints = {rule.endpoint for rule in bench.app.url_map.iter_rules()}
    assert endpoints >= OPEN
    open_ones = set()
    for method, path, endpoint in routes(bench):
        if bench.app.test_client().open(path, method=method, base_url=LOCAL).status_code != 401:
            open_ones.add(endpoint)
    assert open_ones == set()


def test_what_changes_anything_is_known_here(bench: Bench) -> None:
    """The whole surface that a form can reach."""
    assert changing(bench) == [
        "/experiments/actions", "/experiments/digits/actions", "/sign-out", "/start", "/start/check",
    ]  # fmt: skip


def test_every_change_needs_the_form_token(bench: Bench) -> None:
    """With the session's cookie alone, nothing of any of them is carried out: the store hears nothing."""
    browser = bench.signed_in()
    for path in changing(bench):
        bench.store.calls.clear()
        answer = browser.send(path, {"action": "stop_run", "run": "fit-1", "name": "digits"})
        assert answer.status_code in (400, 403), path
        assert not {"append", "create_experiment", "put_archive"} & set(bench.store.calls), path
    assert browser.get("/experiments").status_code == 200


def test_browsers_are_led_to_the_sign_in_from_every_page(bench: Bench) -> None:
    """And programs' addresses answer 401 even to them."""
    browser = bench.browser()
    for method, path, _ in routes(bench):
        if method != "GET":
            continue
        answer = browser.get(path)
        if path.startswith("/api/"):
            assert answer.status_code == 401, path
        else:
            assert answer.status_code == 303, path
            assert answer.headers["Location"].startswith("/sign-in?next="), path


def test_programs_without_the_token_get_401(bench: Bench) -> None:
    """Every route, every method, also routes that do not exist; and the store is not asked."""
    for method, path, _ in [*routes(bench), ("GET", "/nowhere", ""), ("DELETE", "/start", "")]:
        answer = bench.app.test_client().open(path, method=method, base_url=LOCAL)
        assert answer.status_code == 401, (method, path)
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert bench.store.calls == []


def test_browsers_without_a_session_are_led_to_the_sign_in(bench: Bench) -> None:
    """And come back to where they wanted to go."""
    answer = bench.browser().get("/experiments?q=dig")
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/sign-in?next=/experiments%3Fq%3Ddig"


def test_form_of_a_signed_out_browser_is_refused_with_a_way_back(bench: Bench) -> None:
    """A redirect would lose what was typed; the page says how to send it again."""
    answer = bench.browser().send("/start", {"name": "x"})
    assert answer.status_code == 401
    assert "Sign in in a new tab" in answer.text


def test_bearer_token_opens_every_route(bench: Bench) -> None:
    """Programs send the token; they need no form token, since no browser sends this header by itself."""
    client = bench.app.test_client()
    assert client.get("/experiments", headers=BEARER, base_url=LOCAL).status_code == 200
    fields = {"name": "new", "train_metadata": "/data/train.csv"}
    assert client.post("/start", data=fields, headers=BEARER, base_url=LOCAL).status_code == 303
    assert "new" in bench.store.records


@pytest.mark.parametrize(
    "header", ["Bearer wrong", "Bearer", "Basic " + TOKEN, TOKEN, "Bearer \u00e9", f"Bearer {TOKEN}x"]
)
def test_wrong_bearer_token(bench: Bench, header: str) -> None:
    """A wrong header is refused, also beside a good session."""
    client = bench.signed_in().client
    answer = client.get("/experiments", headers={"Authorization": header}, base_url=LOCAL)
    assert answer.status_code == 401


def test_guessing_by_header_is_slowed_down(bench: Bench) -> None:
    """And told how long; neither sessions nor the right token wait for it, on pages as below `/api`."""
    browser = bench.signed_in()
    client = bench.app.test_client()
    wrong = {"Authorization": "Bearer no"}
    for path in ("/experiments", "/api/v1/queue", VIEW, "/experiments", VIEW):
        assert client.get(path, headers=wrong, base_url=LOCAL).status_code == 401
    for path in ("/experiments", "/api/v1/queue", VIEW):
        answer = client.get(path, headers=wrong, base_url=LOCAL)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "60"), path
    assert client.get("/experiments", headers=BEARER, base_url=LOCAL).status_code == 200
    assert client.get(VIEW, headers=BEARER, base_url=LOCAL).status_code == 200
    assert browser.get("/experiments").status_code == 200
    bench.monotonic.now += 61
    assert client.get("/experiments", headers=wrong, base_url=LOCAL).status_code == 401


@pytest.mark.parametrize("header", ["Basic " + TOKEN, "Bearer", "Bearer  ", TOKEN])
def test_what_is_no_bearer_token_is_no_try(bench: Bench, header: str) -> None:
    """It opens nothing and is never compared with the token, so it makes nobody wait."""
    client = bench.app.test_client()
    for path in ("/experiments", VIEW, "/api/v1/queue") * 4:
        assert client.get(path, headers={"Authorization": header}, base_url=LOCAL).status_code == 401
    assert bench.browser().post("/sign-in", {"token": TOKEN}).status_code == 303


@pytest.mark.parametrize("path", ["/start", "/sign-out"])
@pytest.mark.parametrize("token", ["", "guessed"])
def test_form_of_another_site_changes_nothing(bench: Bench, path: str, token: str) -> None:
    """The session's cookie alone is not enough: each form carries its token."""
    browser = bench.signed_in()
    answer = browser.send(path, {"csrf": token, "name": "x", "train_metadata": "/data/train.csv"})
    assert answer.status_code in (400, 403)
    assert "x" not in bench.store.records
    assert browser.get("/experiments").status_code == 200


def test_form_token_of_another_session_is_worth_nothing(bench: Bench) -> None:
    """Tokens are bound to the session that they were made for."""
    theirs = re.search(r'name="csrf" value="([^"]+)"', bench.signed_in().get("/start").text)
    assert theirs
    assert bench.signed_in().send("/sign-out", {"csrf": theirs[1]}).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_change_that_another_site_asks_for_is_refused(bench: Bench, site: str) -> None:
    """Whatever else comes with it, the form's token too: a browser says where a request comes from."""
    browser = bench.signed_in()
    token = re.search(r'name="csrf" value="([^"]+)"', browser.get("/start").text)
    assert token
    fields = {"csrf": token[1], "action": "stop_run", "run": "fit-1"}
    path = "/experiments/digits/actions"
    answer = browser.client.post(path, data=fields, headers={"Sec-Fetch-Site": site}, base_url=LOCAL)
    assert answer.status_code == 403
    assert "append" not in bench.store.calls
    assert browser.client.post(path, data=fields, headers=OWN_SITE, base_url=LOCAL).status_code == 303


def test_every_form_carries_a_token(bench: Bench) -> None:
    """Counted in the pages themselves."""
    browser = bench.signed_in()
    for path in ("/experiments", "/start", "/experiments/digits", "/experiments/digits/delete", "/cluster"):
        page = browser.get(path).text
        assert page.count('method="post"') == page.count('<input type="hidden" name="csrf"') >= 1, path


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:7080", "", "[::2]"])
def test_foreign_host_name_is_refused(bench: Bench, host: str) -> None:
    """A name that an attacker points at this machine (DNS rebinding) opens nothing, not even the sign-in."""
    client = bench.app.test_client()
    for path in ("/sign-in", "/experiments", "/static/style.css"):
        answer = client.get(path, headers={"Host": host, **BEARER})
        assert answer.status_code == 421
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost:7080", "LOCALHOST", "127.0.0.1", "[::1]:7080", "cerebro.example.org"]
)
def test_own_host_names(host: str) -> None:
    """Loopback names, and those that were configured."""
    bench = Bench(settings=settings(public_hosts=frozenset({"cerebro.example.org"})))
    assert bench.app.test_client().get("/sign-in", headers={"Host": host}).status_code == 200


def test_listening_everywhere_does_not_answer_to_every_name() -> None:
    """0.0.0.0 is an address to listen on, not a name to be called by."""
    bench = Bench(settings=settings(host="0.0.0.0"))
    assert bench.app.test_client().get("/sign-in", headers={"Host": "0.0.0.0:7080"}).status_code == 421


@pytest.mark.parametrize(
    ("host", "status"),
    [("10.1.2.3:30080", 200), ("[fd00::1]:80", 200), ("cerebro.example.org", 421), ("1.2.3", 421)],
)
def test_listening_everywhere_answers_to_numbers(host: str, status: int) -> None:
    """A node's address, say: no name server of somebody else's can make a number point here."""
    app = Bench(settings=settings(host="0.0.0.0")).app
    assert app.test_client().get("/sign-in", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("host", ["10.1.2.3:30080", "kubernetes-probe", ""])
@pytest.mark.parametrize("path", ["/health", "/live"])
def test_probes_answer_under_any_name(host: str, path: str) -> None:
    """A kubelet asks by the pod's address."""
    app = Bench(settings=settings(host="0.0.0.0")).app
    assert app.test_client().get(path, headers={"Host": host}).status_code == 200


def test_health_needs_nothing(bench: Bench) -> None:
    """And answers while the store is away."""
    bench.store.is_away = True
    answer = bench.app.test_client().get("/health")
    assert (answer.status_code, answer.json) == (200, {"status": "ok", "api": "/api"})


@pytest.mark.parametrize(
    "path", ["/sign-in", "/experiments", "/start", "/nowhere", "/health", "/static/style.css"]
)
def test_headers_of_every_answer(bench: Bench, path: str) -> None:
    """No foreign or inline script, no frame, no sniffing, no referrer to other sites; pages are not
    cached."""
    headers = bench.signed_in().get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert ("no-store" in headers["Cache-Control"]) == (not path.startswith("/static"))


def test_pages_have_no_inline_script_or_style(bench: Bench) -> None:
    """The policy would block them: this finds them without a browser."""
    browser = bench.signed_in()
    pages = [path for method, path, _ in routes(bench) if method == "GET" and not path.startswith("/api/")]
    for path in [*pages, "/nowhere"]:
        answer = browser.get(path)
        # A report is a file of its own that is saved, never shown as a page of this address.
        is_saved = answer.headers.get("Content-Disposition", "").startswith("attachment")
        if answer.mimetype == "text/html" and not is_saved:
            found = re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", answer.text)
            assert not found, (path, found)


def test_cookie_is_out_of_reach_of_scripts_and_other_sites(bench: Bench) -> None:
    """HttpOnly, SameSite, named for this port; Secure where a proxy speaks TLS; and the token is not in
    it."""
    cookie = bench.browser().get("/sign-in").headers["Set-Cookie"]
    assert cookie.startswith("cerebro-7080=")
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    secure = Bench(settings=settings(is_https=True)).browser().get("/sign-in").headers["Set-Cookie"]
    assert "Secure" in secure


def test_forged_cookie(bench: Bench) -> None:
    """A session is worth what its signature is worth."""
    elsewhere = Bench(settings=settings(token="another-cluster")).browser()
    elsewhere.post("/sign-in", {"token": "another-cluster"})
    cookie = elsewhere.client.get_cookie("cerebro-7080", "127.0.0.1")
    assert cookie
    browser = bench.browser()
    browser.client.set_cookie("cerebro-7080", cookie.value, domain="127.0.0.1")
    assert browser.get("/experiments").status_code == 303


def test_session_outlives_a_restart_of_the_page(bench: Bench) -> None:
    """Its key comes from the token, not from the process."""
    browser = bench.signed_in()
    cookie = browser.client.get_cookie("cerebro-7080", "127.0.0.1")
    assert cookie
    again = Browser(Bench().app)
    again.client.set_cookie("cerebro-7080", cookie.value, domain="127.0.0.1")
    assert again.get("/experiments").status_code == 200


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil",
        "javascript:alert(1)",
        "evil",
        "",
        "/a\nb",
        "/\t/evil",
    ],
)
def test_sign_in_leads_nowhere_else(target: str) -> None:
    """Only paths of this page are followed."""
    assert local_path(target, "/experiments") == "/experiments"


def test_sign_in_leads_to_local_paths() -> None:
    """With their query."""
    assert local_path("/experiments/digits?fit=fit-1", "/") == "/experiments/digits?fit=fit-1"


@pytest.mark.parametrize("name", ["Digits", "a" * 51, "-a", "a%2F..%2Fb", "..", "a.b", "\u00e9", "a%00"])
def test_name_in_an_address_is_checked_before_it_reaches_the_store(bench: Bench, name: str) -> None:
    """It becomes part of a URL of the store."""
    browser = bench.signed_in()
    bench.store.calls.clear()
    assert browser.get(f"/experiments/{name}").status_code == 404
    assert bench.store.calls == []


# --- the read API -------------------------------------------------------------------------------

VIEW = "/api/views/experiments"


@pytest.mark.parametrize("site", ["same-origin", "none", None])
def test_scripts_of_the_page_read_with_the_session(bench: Bench, site: str | None) -> None:
    """Browsers say where a request comes from; an old one that says nothing is believed."""
    headers = {"Sec-Fetch-Site": site} if site else {}
    answer = bench.signed_in().client.get(VIEW, headers=headers, base_url=LOCAL)
    assert answer.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("path", [VIEW, "/start/preview?uri=/data/x.png"])
def test_other_sites_read_nothing_with_it(bench: Bench, site: str, path: str) -> None:
    """Not even an image, whose size would tell something."""
    answer = bench.signed_in().client.get(path, headers={"Sec-Fetch-Site": site}, base_url=LOCAL)
    assert answer.status_code == 403


def test_programs_read_with_the_token_under_any_name(bench: Bench) -> None:
    """As below `/api/v1`."""
    client = bench.app.test_client()
    assert client.get(VIEW, headers={**BEARER, "Host": "whatever"}).status_code == 200
    assert client.get(VIEW, headers={"Authorization": "Bearer no"}, base_url=LOCAL).status_code == 401
    assert client.get(VIEW, headers={"Accept": "text/html"}, base_url=LOCAL).status_code == 401


def test_session_under_a_foreign_name_reads_nothing(bench: Bench) -> None:
    """DNS rebinding brings no cookie, and opens nothing."""
    assert bench.signed_in().client.get(VIEW, headers={"Host": "evil.example"}).status_code == 421


# --- a proxy that signs people in ---------------------------------------------------------------


def proxied(**changes: object) -> Bench:
    values = {"auth_header": "X-Forwarded-User", "auth_proxies": (ip_network("10.1.0.0/16"),)}
    bench = Bench(settings=settings(**(values | changes)))
    bench.store.add(running_story())
    return bench


def ask(
    bench: Bench, address: str, user: str = "ada@example.org", path: str = "/experiments"
) -> TestResponse:
    headers = {"Accept": "text/html", "X-Forwarded-User": user}
    place = {"REMOTE_ADDR": address}
    return bench.app.test_client().get(path, headers=headers, environ_overrides=place, base_url=LOCAL)


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_proxy_that_is_named_signs_people_in(address: str) -> None:
    """Without a token, by its header."""
    assert ask(proxied(), address).status_code == 200


@pytest.mark.parametrize("address", ["10.2.0.1", "127.0.0.1", "::1", "192.168.0.1", ""])
def test_header_of_anybody_else_is_nobody(address: str) -> None:
    """Else whoever reaches the page could be whoever he likes."""
    assert ask(proxied(), address).status_code == 303


def test_header_means_nothing_unless_configured(bench: Bench) -> None:
    """Nor does another one."""
    assert ask(bench, "10.1.2.3").status_code == 303
    assert ask(proxied(auth_header="X-Remote-User"), "10.1.2.3").status_code == 303
    assert ask(proxied(), "10.1.2.3", user=" ").status_code == 303


def test_proxied_browser_still_needs_form_tokens() -> None:
    """A proxy's cookie goes with whatever other sites ask the browser to send, too."""
    bench = proxied()
    client = bench.app.test_client()
    place = {"environ_overrides": {"REMOTE_ADDR": "10.1.2.3"}, "base_url": LOCAL}
    headers = {"Accept": "text/html", "X-Forwarded-User": "ada"}
    path, fields = "/experiments/digits/actions", {"action": "stop_run", "run": "fit-1"}
    assert client.post(path, data=fields, headers=headers, **place).status_code == 403
    page = client.get("/start", headers=headers, **place).text
    token = re.search(r'name="csrf" value="([^"]+)"', page)
    assert token
    answer = client.post(path, data=fields | {"csrf": token[1]}, headers=headers, **place)
    assert answer.status_code == 303
    assert bench.store.logs["digits"][-1].by == "ada"  # type: ignore[union-attr]


def test_form_token_behind_a_proxy_is_the_persons() -> None:
    """Another one's cookie, planted in a browser, brings a token for nobody but himself."""
    bench = proxied()
    client = bench.app.test_client()
    place = {"environ_overrides": {"REMOTE_ADDR": "10.1.2.3"}, "base_url": LOCAL}
    mallory, ada = ({"Accept": "text/html", "X-Forwarded-User": name} for name in ("mallory", "ada"))
    token = re.search(r'name="csrf" value="([^"]+)"', client.get("/start", headers=mallory, **place).text)
    assert token
    path, fields = "/experiments/digits/actions", {"action": "stop_run", "run": "fit-1", "csrf": token[1]}
    assert client.post(path, data=fields, headers=ada, **place).status_code == 403
    assert client.post(path, data=fields, headers=mallory, **place).status_code == 303


@pytest.mark.parametrize("header", ["Basic YWRhOng=", "Bearer of-the-proxys-own"])
def test_proxy_that_passes_its_own_authorization_on(header: str) -> None:
    """nginx' auth_basic does: its word counts for pages and for the read API, its header is no try at the token, and a
    mistake of a browser's user is a page."""
    bench = proxied()
    client = bench.app.test_client()
    place = {"environ_overrides": {"REMOTE_ADDR": "10.1.2.3"}, "base_url": LOCAL}
    headers = {"Accept": "text/html", "X-Forwarded-User": "ada", "Authorization": header}
    for _ in range(7):
        assert client.get(VIEW, headers=headers, **place).status_code == 200
        assert client.get("/experiments", headers=headers, **place).status_code == 200
    assert client.get("/experiments/none", headers=headers, **place).mimetype == "text/html"
    assert client.get(VIEW, headers=headers | {"Host": "evil.example"}, **place).status_code == 421
    assert client.get(VIEW, headers=headers | {"Sec-Fetch-Site": "cross-site"}, **place).status_code == 403
    assert client.get(VIEW, headers=BEARER, **place).status_code == 200


def test_proxy_does_not_speak_for_programs() -> None:
    """The store's API takes the token alone."""
    assert ask(proxied(), "10.1.2.3", path="/api/v1/experiments").status_code == 401
