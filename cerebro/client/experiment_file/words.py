"""The words of a notebook in a file: ``loguniform(1e-4, 1e-1)``, ``ASHA(sampler=TPE())``, ``model:Training(depth=3)``.

A call of a name that is known, with literal arguments, is what it would be in Python; nothing else is evaluated.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cerebro.errors import CerebroError, ExperimentFileError
from cerebro.runtime.tracebacks import text_of


class WordError(ValueError):
    """What is written cannot be read, or a call not be made; the message says why."""


_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(.*", re.DOTALL)
"""The beginning of one: that it does not end is a mistake, too."""
_NAMED = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_]\w*)\s*(\(.*\))?\s*", re.DOTALL)


def meant(value: Any, words: Mapping[str, Callable[..., Any]], *, is_strict: bool) -> Any:
    """A value of a file with the calls in it made.

    Args:
        words: what may be called, by name.
        is_strict: whether a call of any other name is a mistake; else it is the text that stands there.

    Raises:
        WordError: a call cannot be read or made; the message says why.
    """
    if isinstance(value, Mapping):
        return {key: meant(each, words, is_strict=is_strict) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [meant(each, words, is_strict=is_strict) for each in value]
    found = _CALL.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    if found[1] in words:
        return _made(value.strip(), words)
    if is_strict or _close(found[1], words):
        raise WordError(f"{value.strip()}: {_unknown(found[1], words)}")
    return value


def _made(text: str, words: Mapping[str, Callable[..., Any]]) -> Any:
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as problem:
        raise WordError(f"{text}: {problem.msg}") from problem
    return _value(tree, words)


def _value(node: ast.expr, words: Mapping[str, Callable[..., Any]]) -> Any:
    if not isinstance(node, ast.Call):
        if isinstance(node, ast.List | ast.Tuple):
            return [_value(each, words) for each in node.elts]
        if isinstance(node, ast.Dict) and None not in node.keys:
            keys = [_value(key, words) for key in node.keys if key is not None]
            return dict(zip(keys, (_value(each, words) for each in node.values), strict=True))
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise WordError(f"{ast.unparse(node)}: expected a number, a text in quotes, or a list") from None
    name = ast.unparse(node.func)
    if name not in words:
        raise WordError(f"{ast.unparse(node)}: {_unknown(name, words)}")
    if any(isinstance(each, ast.Starred) for each in node.args) or any(
        not each.arg for each in node.keywords
    ):
        raise WordError(f"{ast.unparse(node)}: give the arguments one by one")
    positional = [_value(each, words) for each in node.args]
    named = {str(each.arg): _value(each.value, words) for each in node.keywords}
    try:
        return words[name](*positional, **named)
    except (CerebroError, TypeError) as problem:
        raise WordError(f"{ast.unparse(node)}: {problem}") from problem


def _unknown(name: str, words: Mapping[str, object]) -> str:
    close = _close(name, words)
    return f"did you mean {close}?" if close else f"there are {', '.join(sorted(words))}"


def _close(name: str, words: Mapping[str, object]) -> str:
    lower = {each.lower(): each for each in words}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.7)
    return lower[found[0]] if found else ""


# --- user code -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Named:
    """An object of a class of the user's, as a file names it: ``module:Class``, or ``module:Class(3)``."""

    text: str
    module: str
    name: str
    call: str

    @classmethod
    def parse(cls, text: str) -> Named:
        """Read, not yet imported.

        Raises:
            WordError: it is not of this form, or the arguments cannot be read.
        """
        found = _NAMED.fullmatch(text)
        if found is None:
            raise WordError(f"{text!r}: expected module:Class, such as train:Training, or with arguments")
        named = cls(text=text.strip(), module=found[1], name=found[2], call=f"{found[2]}{found[3] or '()'}")
        _made(named.call, {named.name: lambda *_, **__: None})
        return named

    def loaded(self, folders: Sequence[Path]) -> Any:
        """The object; its module is imported from one of the folders, else from where Python finds it. Runs user code.

        Raises:
            ExperimentFileError: there is no such module or class, or it raised: with its traceback.
        """
        try:
            with _first_on_path(folders):
                found = getattr(importlib.import_module(self.module), self.name)
        except ModuleNotFoundError as problem:
            if problem.name == self.module.partition(".")[0]:
                raise ExperimentFileError(
                    f"{self.text}: there is no module {self.module!r} in {' or '.join(map(str, folders))}, and none is "
                    "installed"
                ) from problem
            raise ExperimentFileError(
                f"{self.text}: its module needs {problem.name!r}, which is not installed"
            ) from problem
        except (Exception, SystemExit) as problem:
            raise ExperimentFileError(
                f"{self.text} cannot be imported\n{text_of(problem).rstrip()}"
            ) from problem
        try:
            return _made(self.call, {self.name: found})
        except WordError as problem:
            raise ExperimentFileError(f"{self.text}: {problem}") from problem
        except (Exception, SystemExit) as problem:
            raise ExperimentFileError(f"{self.text} cannot be made\n{text_of(problem).rstrip()}") from problem


@contextmanager
def _first_on_path(folders: Sequence[Path]) -> Iterator[None]:
    before = sys.path[:]
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = before
