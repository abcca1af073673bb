"""The contract suite of object stores."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from cerebro.data.objects import ObjectStore
from cerebro.errors import LocatorError

_LARGE = bytes(range(256)) * 10_000
"""More than two pieces of a copy."""
_NAMES = ("a.txt", "images/1.png", "images/2.png", "images/deep/4.png", "images-2/x", "other/3 ü#?%20+.png")
_OUTSIDE = ("../a.txt", "images/../../a.txt", "/etc/passwd", "", "images\\..\\a", "a\0b")


def check_store(make: Callable[[str], ObjectStore], uri: str, put: Callable[[str, bytes], object]) -> None:
    """Write objects below a root, read them through a store, and check the results.

    It checks content, ranges, lists and folders, copies, versions, missing objects, and that names stay below the root.
    Names have spaces and characters that addresses escape elsewhere: each character stands for itself.

    Args:
        make: returns a store for the address of a root, such as the class.
        uri: address of an empty root.
        put: writes an object below the root, by its relative name.

    Raises:
        LocatorError: the store does not conform; the message has the call.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from cerebro.data.objects import open_store
        >>> root = Path(tempfile.mkdtemp())
        >>> def put(name, content):
        ...     (root / name).parent.mkdir(parents=True, exist_ok=True)
        ...     (root / name).write_bytes(content)
        >>> check_store(open_store, str(root), put)
    """
    contents = {name: f"content of {name}".encode() for name in _NAMES} | {"large": _LARGE, "empty": b""}
    for name, content in contents.items():
        put(name, content)
    store = make(uri)
    for call, expected in _calls(store, contents):
        _require(call, expected)
    _check_copies(store, contents)
    _check_versions(store, put)
    for name in ("b.txt", "images/9.png"):
        for method in ("read", "size", "version"):
            _require_error(
                f"{method}({name!r})", getattr(store, method), name, words=(name, "does not exist")
            )
    for name in _OUTSIDE:
        for method in ("read", "exists", "size", "version"):
            _require_error(f"{method}({name!r})", getattr(store, method), name, words=("leaves its root",))
    _require_error(
        "check() of a missing root", lambda at: make(at).check(), f"{uri.rstrip('/')}/no-such-folder"
    )


def _calls(store: ObjectStore, contents: dict[str, bytes]) -> Iterator[tuple[Call, object]]:
    for name, content in contents.items():
        yield Call(f"read({name!r})", partial(store.read, name)), content
        yield Call(f"size({name!r})", partial(store.size, name)), len(content)
        yield Call(f"exists({name!r})", partial(store.exists, name)), True
        yield Call(f"head({name!r}, 7)", partial(store.head, name, 7)), content[:7]
    yield Call("open('large') and three reads", lambda: _ranges(store)), (_LARGE[-3:], _LARGE[5:9], _LARGE)
    yield Call("exists('b.txt')", lambda: store.exists("b.txt")), False
    yield Call("exists('images')", lambda: store.exists("images")), False
    yield Call("list()", lambda: [*store.list()]), sorted(contents)
    for prefix in ("images/", "im", "nothing"):
        names = sorted(name for name in contents if name.startswith(prefix))
        yield Call(f"list({prefix!r})", partial(_listed, store, prefix)), names
    yield Call("in_folder('')", lambda: [*store.in_folder("")]), ["a.txt", "empty", "large"]
    yield Call("in_folder('images')", lambda: [*store.in_folder("images")]), ["images/1.png", "images/2.png"]
    yield Call("folders('images')", lambda: [*store.folders("images")]), ["images/deep"]
    yield Call("has_folder('images')", lambda: store.has_folder("images")), True
    for name in ("image", "a.txt"):
        yield Call(f"has_folder({name!r})", partial(store.has_folder, name)), False
    yield Call("check()", store.check), None


def _listed(store: ObjectStore, prefix: str) -> list[str]:
    return [*store.list(prefix)]


class Call:
    """A call of a store, and its name for errors."""

    def __init__(self, name: str, run: Callable[[], Any]) -> None:
        self.name, self.run = name, run


def _ranges(store: ObjectStore) -> tuple[bytes, bytes, bytes]:
    with store.open("large") as file:
        file.seek(-3, 2)
        end = file.read()
        file.seek(5)
        inside = file.read(4)
        file.seek(0)
        return end, inside, file.read()


def _check_copies(store: ObjectStore, contents: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "deep", "copy")
        for name in ("large", "empty", _NAMES[-1]):
            store.fetch(name, copy)
            _require(Call(f"fetch({name!r})", copy.read_bytes), contents[name])
        with_copy = [path.name for path in copy.parent.iterdir()]
        _require(Call("the copies' folder", lambda: with_copy), ["copy"])
        missing = Path(folder, "missing", "copy")
        _require_error(
            "fetch('b.txt')", lambda name: store.fetch(name, missing), "b.txt", words=("does not exist",)
        )
        if missing.exists():
            raise LocatorError("fetch('b.txt') left a file, although the object does not exist")


def _check_versions(store: ObjectStore, put: Callable[[str, bytes], object]) -> None:
    put("changing", b"first")
    first = store.version("changing")
    _require(Call("a second version('changing')", lambda: store.version("changing")), first)
    put("changing", b"second!")
    if store.version("changing") == first:
        raise LocatorError(f"version('changing') is still {first!r}, although the content changed")


def _require(call: Call, expected: object) -> None:
    found = call.run()
    if found != expected:
        raise LocatorError(f"{call.name} returned {_short(found)}, expected {_short(expected)}")


def _require_error(call: str, run: Callable[[str], object], name: str, words: tuple[str, ...] = ()) -> None:
    try:
        found = run(name)
    except LocatorError as error:
        if all(each in str(error) for each in words):
            return
        raise LocatorError(f"{call}: the error lacks {' and '.join(map(repr, words))}: {error}") from error
    except Exception as error:
        raise LocatorError(
            f"{call} raised {type(error).__name__}: {error}, expected a LocatorError"
        ) from error
    raise LocatorError(f"{call} returned {_short(found)}, expected a LocatorError")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
