"""List the routes of the app and the credentials that programs send."""

from __future__ import annotations

import re

from werkzeug.routing import Rule

from tests.dispatcher.fakes import TOKEN, Bench

OPEN = {"health", "live", "sign_in", "static"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LOCAL = "http://127.0.0.1:7080"
VIEW = "/api/views/experiments"

_EXAMPLES = {
    "name": "digits",
    "model": "m00",
    "path": "fit-1/m00/x.pt",
    "key": "digits",
    "volume": "logs",
    "figure": "curves",
    "filename": "style.css",
    "what": "change",
    "number": "1",
    "target": "a1b2c3d4",
    "image": "0a1b2c3d.png",
}


def address(rule: Rule) -> str:
    """Build a path that matches the rule."""
    return re.sub(
        r"<(?:(?P<kind>[a-z]+)(?:\([^)]*\))?:)?(?P<name>\w+)>",
        lambda found: "0" * 64 if found["kind"] == "string" else _EXAMPLES[found["name"]],
        rule.rule,
    )


def routes(bench: Bench) -> list[tuple[str, str, str]]:
    """List method, path and endpoint of every route that needs a sign-in."""
    return [
        (method, address(rule), rule.endpoint)
        for rule in bench.app.url_map.iter_rules()
        if rule.endpoint not in OPEN
        for method in sorted(rule.methods or ())
    ]


def changing(bench: Bench) -> list[str]:
    """List the path of every page that accepts POST."""
    found = [path for method, path, _ in routes(bench) if method not in ("GET", "HEAD", "OPTIONS")]
    return sorted({path for path in found if not path.startswith("/api/")})
