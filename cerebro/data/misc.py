"""Miscellaneous files of the dataset locators, on the machine of whoever runs user code.

A folder is named after the files' addresses and versions, so a file that changed is fetched anew and never
mixed up with what was there before. Fetched aside and renamed; safe for several processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from cerebro.data.objects import describe, fetch_uri, split_uri


def versions(uris: Sequence[str]) -> dict[str, str]:
    """Version of each file, as its store tells it.

    Raises:
        LocatorError: one is missing or unreadable.
    """
    return {uri: describe(uri).version for uri in uris}


def fetch_misc(uris: Sequence[str], folder: Path) -> str:
    """Folder with the files under their own names, below `folder`; an empty string when there are none.

    Raises:
        LocatorError: one is missing or unreadable.
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
