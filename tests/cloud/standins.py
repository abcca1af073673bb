"""Executables in place of eksctl, kubectl, helm and aws, whose calls a test answers.

Each is a bash script that sends name and arguments to a server in the test's process and prints the answer. The code
under test starts real processes, and the test controls their state and failures.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

NAMES = ("eksctl", "kubectl", "helm", "aws")

Answer = tuple[int, str]
"""Exit status and output."""

_SCRIPT = """#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/{port}
printf '%d\\n' $(($# + 1)) >&3
printf '%s\\0' {name} "$@" >&3
IFS= read -r status <&3
while IFS= read -r line <&3; do printf '%s\\n' "$line"; done
exit "$status"
"""


@contextmanager
def standins(folder: Path, answer: Callable[[Sequence[str]], Answer]) -> Iterator[None]:
    """Install executables in a folder and answer them by `answer`, one call at a time."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            num_arguments = int(self.rfile.readline())
            arguments = [self._argument() for _ in range(num_arguments)]
            status, output = answer(arguments)
            self.wfile.write(f"{status}\n{output}".encode())
            if output and not output.endswith("\n"):
                self.wfile.write(b"\n")

        def _argument(self) -> str:
            read = bytearray()
            while (byte := self.rfile.read(1)) not in (b"\0", b""):
                read += byte
            return read.decode()

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        for name in NAMES:
            path = folder / name
            path.write_text(_SCRIPT.format(port=server.server_address[1], name=name))
            path.chmod(0o755)
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
