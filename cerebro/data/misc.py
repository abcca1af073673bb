"""Local copies of the locators' miscellaneous files (`misc`), for processes that run user code.

The child process, a replay and user code in a notebook call `fetch_misc`; the controller records `versions`. The
folder's name depends on the files' addresses and versions, so a changed file gets a new folder. Old folders are not
removed here. Files are written under a temporary name and renamed; several processes may do this at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from cerebro.data.objects import describe, fetch_uri, split_uri


def versions(uris: Sequence[str]) -> dict[str, str]:
    """Return the version of each file, from its store.

    Raises:
        LocatorError: a file is missing or unreadable.
    """
    return {uri: describe(uri).version for uri in uris}


def fetch_misc(uris: Sequence[str], folder: Path) -> str:
    """Download the files into a folder below `folder` and return it; "" without files.

    Raises:
        LocatorError: a file is missing or unreadable.
        ObjectStoreError: a store does not answer.
    """
    if not uris:
        return ""
    facts = "\n".join(f"{uri} {version}" for uri, version in versions(uris).items())
    target = folder / hashlib.sha256(facts.encode()).hexdigest()[:16]
    target.mkdir(parents=True, exist_ok=True)
    for uri in uris:
        _, name = split_uri(uri)
        if not (target / name).exists():
            fetch_uri(uri, target / name)
    return str(target)
