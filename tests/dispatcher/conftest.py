"""What each application would make anew, though it is the same for all of a process, is made once for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from werkzeug.routing import Rule

from dispatcher.pages import statics


@pytest.fixture(scope="session", autouse=True)
def made_once() -> Iterator[None]:
    """Files that are packed, and the functions that build addresses, which werkzeug compiles one by one."""
    compiled: dict[Any, Callable[..., tuple[str, str]]] = {}
    compile_builder = Rule._compile_builder

    def known(self: Rule, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        # All that the function depends on. It gets the rule as its first argument.
        key = (self.rule, tuple(self._trace), repr(self.defaults), append_unknown)
        if key not in compiled:
            compiled[key] = compile_builder(self, append_unknown)
        return compiled[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "_compile_builder", known)
        patch.setattr(statics, "Statics", cache(statics.Statics))
        yield
