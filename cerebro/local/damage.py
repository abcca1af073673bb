"""Explain a damaged append-only file of the database to the user."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from cerebro.local.database import find_server

_SAID = re.compile(r"([^\n]*\bappend only file (\S+?)(?::|\s)[^\n]*)")
_TAIL = 4 << 10


def explained(store: Path, log: Path) -> str:
    """Explain why a database ended before it was ready, with the damaged file and the repair command.

    Return an empty text if the log reports no damage.

    Args:
        store: folder with its data.
        log: its output.
    """
    found = _SAID.search(_last_start(log))
    if found is None or not _is_of_damage(found[1]):
        return ""
    file = store / "appendonlydir" / found[2].rstrip(".,")
    return (
        f": its append-only file {file} is damaged. End the cluster (`cerebro down`), keep a copy "
        f"(`cp -a {shlex.quote(str(store))} {shlex.quote(f'{store}.damaged')}`), cut the file where the damage begins "
        f"(`{mend_command(file)}`), and start again: records behind the damage are lost. docs/local-cluster.md, "
        '"A damaged store", says what follows'
    )


def mend_command(file: Path) -> str:
    """What cuts a file at its last whole record, for a shell. Of the file itself: of a manifest, some versions of the
    program do not know their own base file."""
    server = find_server()
    if server is None:
        return f"valkey-check-aof --fix {shlex.quote(str(file))}"
    # The program of all names is one, which looks at the name that it is started by.
    name = server.name.replace("-server", "-check-aof")
    checker = server.with_name(name)
    if os.access(checker, os.X_OK):
        return f"{shlex.quote(str(checker))} --fix {shlex.quote(str(file))}"
    return f'bash -c \'exec -a {name} "$0" --fix "$1"\' {shlex.quote(str(server))} {shlex.quote(str(file))}'


def _is_of_damage(line: str) -> bool:
    return any(word in line for word in ("Bad file format", "Unexpected end of file", "Error reading"))


def _last_start(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    # Of the newest line alone: an earlier start may have said it.
    return text.rstrip().rpartition("\n")[2]
