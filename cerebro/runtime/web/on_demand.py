"""Start a web server at its first connection.

``python -m cerebro.runtime.web.on_demand --bind [::]:8888 -- COMMAND ...`` is how the chart runs TensorBoard and the
notebook. Until the first connection this process listens in the server's place and answers the kubelet's probes, with a
quarter of the memory. The first other request starts the server, on a loopback port that replaces ``{port}`` in the
command. From then on all connections are relayed to it, probes included, so a server that hangs fails its probes. When
the server ends, this process ends with the same status: the kubelet reports the exit and restarts the container, which
waits again. Idle servers are not stopped. Standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.web.addresses import listener, split_bind

HOST = "127.0.0.1"
START_S = 120.0
"""Seconds for the server to listen. A server that hangs here fails no probe."""

_PROBE = re.compile(rb"^user-agent: *kube-probe/", re.IGNORECASE | re.MULTILINE)
_WELL = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: close\r\n\r\nidle\n"
_REQUEST_S = 60.0
_LOOK_AGAIN_S = 0.05
_PIECE_BYTES = 64 * 1024
_FAILED, _SIGNALLED = 1, 128


class OnDemandServer:
    """A server that starts at the first connection.

    Args:
        command: command of the server; ``{port}`` is replaced by its loopback port.
        start_s: seconds for the server to listen.
    """

    def __init__(self, command: Sequence[str], *, start_s: float = START_S) -> None:
        self._command, self._start_s = command, start_s
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._started: asyncio.Task[None] | None = None
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self, bound: socket.socket) -> int:
        """Serve the connections of a listening socket until the server ends, or this process is asked to.

        Returns:
            The server's exit status, as a shell has it; 0 after SIGTERM or SIGINT.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end, 0)
        connections = await asyncio.start_server(self._serve, sock=bound)
        status = await self._status
        connections.close()
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait)
        return status

    def _end(self, status: int) -> None:
        if not self._status.done():
            self._status.set_result(status)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = b""
        try:
            if self._started is None or not self._started.done():
                async with asyncio.timeout(_REQUEST_S):
                    request = await _first_request(reader)
                if _PROBE.search(request):
                    writer.write(_WELL)
                    await writer.drain()
                    return
                if not request:
                    return
                if self._started is None:
                    self._started = asyncio.create_task(self._start())
                await asyncio.shield(self._started)
            await self._relay(request, reader, writer)
        except (OSError, asyncio.CancelledError):  # a connection was lost, or this process ends
            pass
        finally:
            writer.close()

    async def _start(self) -> None:
        """Start the server, and return when it listens.

        Raises:
            OSError: it can't be started, or does not listen in time. Then this process ends, too.
        """
        try:
            async with asyncio.timeout(self._start_s):
                await self._listening()
        except OSError as error:
            problem = str(error) or f"it does not listen after {self._start_s:g} s"
            _say(f"{self._command[0]} is ended: {problem}")
            self._end(_FAILED)
            raise

    async def _listening(self) -> None:
        with socket.create_server((HOST, 0)) as free:
            self._port = free.getsockname()[1]
        command = [part.replace("{port}", str(self._port)) for part in self._command]
        _say(f"the first connection starts {' '.join(command)}")
        self._process = subprocess.Popen(with_parent_death_signal(command))
        ended = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(ended, self._server_ended, ended)
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, self._port)
                writer.close()
                return
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _server_ended(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        assert self._process is not None, "only a server that was started ends"
        status = self._process.wait()
        _say(f"{self._command[0]} has ended with status {status}")
        self._end(status if status >= 0 else _SIGNALLED - status)

    async def _relay(
        self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answers, requests = await asyncio.open_connection(HOST, self._port)
        try:
            requests.write(request)
            await asyncio.gather(_copy(reader, requests), _copy(answers, writer))
        finally:
            requests.close()


async def _first_request(reader: asyncio.StreamReader) -> bytes:
    """Read the head of a request; return less if the caller leaves before its end."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError:
        return await reader.read(_PIECE_BYTES)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy all bytes, then the end of the stream."""
    try:
        while piece := await source.read(_PIECE_BYTES):
            target.write(piece)
            await target.drain()
        target.write_eof()
    except OSError:  # a connection was lost: end the other
        target.transport.abort()


def _say(what: str) -> None:
    sys.stderr.write(f"on_demand: {what}\n")
    sys.stderr.flush()


async def _run(bound: socket.socket, command: Sequence[str]) -> int:
    return await OnDemandServer(command).run(bound)


def main() -> None:
    """Listen on ``--bind`` until the server ends or SIGTERM comes."""
    parser = argparse.ArgumentParser(prog="python -m cerebro.runtime.web.on_demand", allow_abbrev=False)
    parser.add_argument("--bind", required=True, help="host:port; [::] for all addresses of both families")
    parser.add_argument("command", nargs="+", help="of the server, after --, with {port} for its port")
    options = parser.parse_args()
    host, port = split_bind(options.bind)
    try:
        bound = listener(host, int(port))
    except (OSError, ValueError, OverflowError) as error:
        sys.exit(
            f"on_demand: --bind is {options.bind!r}, expected a free host:port such as [::]:8888: {error}"
        )
    sys.exit(asyncio.run(_run(bound, options.command)))


if __name__ == "__main__":
    main()
