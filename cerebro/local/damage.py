"""Explain a damaged append-only file of the database to the user, with the command that repairs it.

The supervisor calls `explained` when the database ends before it is ready (`Service.explain`). It reads the log;
nothing is repaired.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from cerebro.local.database import find_server

_SAID = re.compile(r"([^\n]*\bappend only file (\S+?)(?::|\s)[^\n]*)")
_TAIL = 4 << 10
"""Bytes of the log's end that are searched."""


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
        f"(`{mend_command(file)}`), and start again: records behind the damage are lost. see "
        '"A damaged store" in the documentation'
    )


def mend_command(file: Path) -> str:
    """Return the shell command that cuts a file at its last complete record.

    It names the file, not the manifest: some versions of the program do not find their base file through a manifest.
    """
    server = find_server()
    if server is None:
        return f"valkey-check-aof --fix {shlex.quote(str(file))}"
    # One program serves all names and acts by the name it is started with.
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
    # The last line only: earlier lines may be of an earlier start.
    return text.rstrip().rpartition("\n")[2]
