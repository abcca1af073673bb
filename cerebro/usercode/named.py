"""Objects of user classes named in a text: `model:Training`, or `model:Training(depth=3)` with literals.

The client's experiment files (`cerebro.client.experiment_file`) use them instead of pickled specs. Only calls of known
names with literal arguments are evaluated. A name is encoded like a spec but without its module, because workers import
it from the code archive.
"""

from __future__ import annotations

import ast
import base64
import difflib
import hashlib
import importlib
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cerebro.contract.records import CodeRecord
from cerebro.errors import CerebroError, ExperimentFileError, SpecError
from cerebro.runtime.tracebacks import text_of


class WordError(ValueError):
    """A text cannot be parsed, or its call failed; the message has the reason."""


_NAMED = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_]\w*)\s*(\(.*\))?\s*", re.DOTALL)


# --- calls with literal arguments ----------------------------------------------------------------


def evaluate(text: str, words: Mapping[str, Callable[..., Any]]) -> Any:
    """Evaluate a call whose arguments are literals or further calls.

    Args:
        text: the call.
        words: callable by name. A name that begins with a dot is a method of a call's result: ``choice(4).when(...)``.

    Raises:
        WordError: the text cannot be parsed, names an unknown callable, or the call failed.
    """
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
    receiver: list[ast.expr] = []
    name = ast.unparse(node.func)
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        receiver, name = [node.func.value], f".{node.func.attr}"
    if name not in words:
        raise WordError(f"{ast.unparse(node)}: {unknown(name, words)}")
    if any(isinstance(each, ast.Starred) for each in node.args) or any(
        not each.arg for each in node.keywords
    ):
        raise WordError(f"{ast.unparse(node)}: give the arguments one by one")
    positional = [_value(each, words) for each in (*receiver, *node.args)]
    named = {str(each.arg): _value(each.value, words) for each in node.keywords}
    try:
        return words[name](*positional, **named)
    except (CerebroError, TypeError) as problem:
        raise WordError(f"{ast.unparse(node)}: {problem}") from problem


def unknown(name: str, words: Mapping[str, object]) -> str:
    """Return advice for a name that is not among the words."""
    close = close_to(name, words)
    return f"did you mean {close}?" if close else f"there are {', '.join(sorted(words))}"


def close_to(name: str, words: Mapping[str, object]) -> str:
    """Return the word that is most similar to a name, or ""."""
    lower = {each.lower(): each for each in words}
    matches = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.7)
    return lower[matches[0]] if matches else ""


# --- objects of the user's classes ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Named:
    """An object of a user class as a file names it: `module:Class`, or `module:Class(3)`."""

    text: str
    module: str
    name: str
    call: str

    @classmethod
    def parse(cls, text: str) -> Named:
        """Parse a text without importing the module.

        Raises:
            WordError: the form or the arguments are invalid.
        """
        match = _NAMED.fullmatch(text)
        if match is None:
            raise WordError(f"{text!r}: expected module:Class, such as train:Training, or with arguments")
        named = cls(text=text.strip(), module=match[1], name=match[2], call=f"{match[2]}{match[3] or '()'}")
        evaluate(named.call, {named.name: lambda *_, **__: None})
        return named

    def loaded(self, folders: Sequence[Path]) -> Any:
        """Import the module, from the folders or else from Python's path, and create the object.

        Runs user code.

        Raises:
            ExperimentFileError: the module or class is missing, or raised an error; the message has the traceback.
        """
        try:
            with _first_on_path(folders):
                user_class = getattr(importlib.import_module(self.module), self.name)
        except ModuleNotFoundError as problem:
            if problem.name == self.module.partition(".")[0]:
                places = " or ".join(map(str, folders)) or "the code archive"
                raise ExperimentFileError(
                    f"{self.text}: module {self.module!r} is neither in {places} nor installed"
                ) from problem
            raise ExperimentFileError(
                f"{self.text}: its module needs {problem.name!r}, which is not installed"
            ) from problem
        except (Exception, SystemExit) as problem:
            raise ExperimentFileError(
                f"{self.text} cannot be imported\n{text_of(problem).rstrip()}"
            ) from problem
        try:
            return evaluate(self.call, {self.name: user_class})
        except WordError as problem:
            raise ExperimentFileError(f"{self.text}: {problem}") from problem
        except (Exception, SystemExit) as problem:
            raise ExperimentFileError(f"{self.text} cannot be made\n{text_of(problem).rstrip()}") from problem


def encoded(named: Named, archive: str, *, author: str = "") -> CodeRecord:
    """Encode the name instead of the object; `encoding.decode` imports its module.

    Args:
        named: the object's name.
        archive: SHA-256 of the code archive with the module, or "".
        author: name of the user.
    """
    content = base64.b64encode(pickle.dumps(_Reference(named.text, archive), protocol=5)).decode()
    return CodeRecord(
        sha256=hashlib.sha256(content.encode()).hexdigest(),
        fingerprint=hashlib.sha256(f"{archive} {named.text}".encode()).hexdigest(),
        class_name=named.name,
        source=f"# {named.text}\n# Named by an experiment file: module {named.module} of the code archive.",
        encoded=content,
        author=author,
    )


def restored(text: str, archive: str) -> Any:
    """Return the object with this name. Runs user code.

    Raises:
        SpecError: the module or class is missing, or raised an error; the message has the traceback.
    """
    try:
        # The archive's modules come first; otherwise installed ones with the same name would win.
        archive_folder = os.environ.get("CEREBRO_ARCHIVE")
        return Named.parse(text).loaded([Path(archive_folder)] if archive_folder else [])
    except (ExperimentFileError, WordError) as problem:
        raise SpecError(str(problem)) from problem


class _Reference:
    """An object that is pickled as a call of `restored`."""

    def __init__(self, text: str, archive: str) -> None:
        self._arguments = text, archive

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return restored, self._arguments


@contextmanager
def _first_on_path(folders: Sequence[Path]) -> Iterator[None]:
    original_path = sys.path[:]
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = original_path
