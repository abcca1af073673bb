"""Build shared, expensive parts of the app once per process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from werkzeug.routing import Rule

import dispatcher.app
from dispatcher.documentation import page as documentation
from dispatcher.pages.statics import Statics


@pytest.fixture(scope="session", autouse=True)
def made_once() -> Iterator[None]:
    """Cache packed files and werkzeug's compiled routes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "compile", _compiled_once())
        patch.setattr(dispatcher.app, "Statics", cache(Statics))
        yield


@pytest.fixture(autouse=True)
def no_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ignore a documentation site that `make docs` has built in this checkout."""
    monkeypatch.setattr(documentation, "FOLDER", tmp_path / "no-site")


def _compiled_once() -> Any:
    known: dict[Any, tuple[Any, ...]] = {}
    compile_rule = Rule.compile

    def compiled(self: Any) -> None:
        key = (self.rule, self.subdomain, self.host, self.merge_slashes, repr(self.defaults))
        if key not in known:
            compile_rule(self)
            # The URL builder functions take the rule as their first argument.
            builders = self._build.__func__, self._build_unknown.__func__
            known[key] = self._parts, self._trace, self._converters, frozenset(self.arguments), *builders
        self._parts, self._trace, self._converters, arguments, build, build_unknown = known[key]
        self.arguments |= arguments
        self._build, self._build_unknown = build.__get__(self), build_unknown.__get__(self)

    return compiled
