"""Routes of the documentation site, if this checkout has one. Users sign in, as for all pages.

The site's pages have inline scripts, so each gets a Content-Security-Policy with their hashes. The site's search adds
a style element.
"""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from pathlib import Path

from flask import Flask, Response, abort, redirect, request, send_from_directory, url_for
from flask.typing import ResponseReturnValue
from werkzeug.security import safe_join

from dispatcher.services import Services

FOLDER = Path(__file__).resolve().parents[2] / "site"
"""The site; it exists after `make docs`."""
_TABS_PAGE = "web-page/"
"""Page with a heading for each tab."""
_INLINE = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def register(app: Flask, services: Services) -> None:
    """Add the routes, and the address of the tabs' documentation for templates."""

    @app.get("/documentation/", defaults={"path": ""})
    @app.get("/documentation/<path:path>")
    def documentation(path: str) -> ResponseReturnValue:
        found = safe_join(str(FOLDER), path or ".")
        if found is not None and Path(found).is_dir():
            if not request.path.endswith("/"):
                return redirect(f"{request.path}/", 303)  # links in the page are relative
            path += "index.html"
        if not path.endswith(".html"):
            return send_from_directory(FOLDER, path)
        page = safe_join(str(FOLDER), path)
        if page is None or not Path(page).is_file():
            abort(404)
        content = Path(page).read_bytes()
        response = Response(content, mimetype="text/html")
        response.headers["Content-Security-Policy"] = _policy(content)
        return response

    @app.context_processor
    def documented() -> dict[str, str]:
        site = url_for("documentation", path=_TABS_PAGE) if (FOLDER / _TABS_PAGE).is_dir() else ""
        return {"docs": services.settings.links.docs or site}


def _policy(page: bytes) -> str:
    digests = (base64.b64encode(sha256(script).digest()).decode() for script in _INLINE.findall(page))
    hashes = "".join(f" 'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'{hashes}; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; worker-src 'self'; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
