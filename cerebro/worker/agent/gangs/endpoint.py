"""Connections between the workers of a gang: the leader listens, the others connect.

Each agent has one `GangEndpoint`. `Execution` registers the ranks it expects; `MemberRun` connects to the leader.
Callers prove that they know the cluster's token (`handshake`); later traffic is not encrypted. Only control messages
pass here: tensors use torch's own connections.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from cerebro.errors import ClusterError
from cerebro.worker.agent.gangs.handshake import HandshakeError, answer, call
from cerebro.worker.agent.gangs.remote import JOIN_S, RemoteRank
from cerebro.worker.agent.lease import Name

log = logging.getLogger(__name__)

RankKey = tuple[Name, int]
"""An attempt and a rank."""

_BACKLOG = 128
_PAUSE_S, _POLL_S = 0.2, 5.0
_CALLERS = 64
"""Maximum concurrent handshakes."""
_REMEMBERED = 1000
"""Number of ended attempts that are remembered, to refuse late connections."""
_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 5),
    (socket.TCP_KEEPINTVL, 2),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 10_000),
)
"""Detects a vanished machine within about ten seconds, with or without traffic."""


class GangEndpoint:
    """Listens on a given or free port from creation. Thread-safe.

    Args:
        host: address or name of this worker, as others reach it.
        port: 0 means any free port.
        token: the cluster's token.

    Attributes:
        host: the numeric address.
        address: ``HOST:PORT``.

    Raises:
        ClusterError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        self._token = token
        try:
            family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._listener = socket.create_server(place[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ClusterError(
                f"this worker cannot listen on {host}:{port} for workers that train with it ({error}): set "
                "CEREBRO_ADDRESS to an address of this machine that other workers reach, and CEREBRO_GANG_PORT to a "
                "free port"
            ) from error
        self.host, bound = self._listener.getsockname()[:2]
        self.address = f"{self.host}:{bound}"
        self._lock = threading.Lock()
        self._expected: dict[RankKey, RemoteRank] = {}
        self._early: dict[RankKey, tuple[float, socket.socket]] = {}
        """Connections for attempts this worker does not know yet, and their arrival times."""
        self._over: deque[Name] = deque(maxlen=_REMEMBERED)
        """Ended attempts, newest last."""
        self._welcoming = threading.BoundedSemaphore(_CALLERS)
        self._is_closed = threading.Event()
        threading.Thread(target=self._accept, name="gang endpoint", daemon=True).start()

    def expect(self, attempt: Name, ranks: Mapping[int, RemoteRank]) -> None:
        """Expect connections of these ranks, or hand over those already here."""
        for rank, remote in ranks.items():
            with self._lock:
                _, end = self._early.pop((attempt, rank), (0.0, None))
                if end is None:
                    self._expected[attempt, rank] = remote
            if end is not None:
                remote.arrive(end)

    def forget(self, attempt: Name) -> None:
        """Mark an attempt as ended and close its waiting connections."""
        with self._lock:
            self._expected = {key: rank for key, rank in self._expected.items() if key[0] != attempt}
            ends = [self._early.pop(key)[1] for key in list(self._early) if key[0] == attempt]
            self._over.append(attempt)
        for end in ends:
            end.close()

    def connect(self, address: str, attempt: Name, rank: int) -> socket.socket:
        """Connect to a gang's leader as one rank.

        Raises:
            OSError, HandshakeError: it cannot be reached or is not in this cluster.
        """
        host, _, port = address.rpartition(":")
        end = socket.create_connection((host, int(port)), timeout=JOIN_S)
        try:
            experiment, task, number = attempt
            call(
                end,
                self._token,
                {"experiment": experiment, "task": task, "attempt": number, "rank": rank},
            )
        except BaseException:
            end.close()
            raise
        _keep_alive(end)
        return end

    def close(self) -> None:
        """Stop listening. Established connections stay.

        The thread that accepts closes the listener. Closed here, its number could go to another file while that
        thread waits for it.
        """
        self._is_closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()

    def _accept(self) -> None:
        with self._listener as listener:
            listener.settimeout(_POLL_S)
            while True:
                try:
                    end, _ = listener.accept()
                except TimeoutError:
                    self._send_away_outdated()
                    continue
                except OSError:
                    if self._is_closed.wait(_PAUSE_S):  # otherwise descriptors have run out for now
                        return
                    continue
                self._welcoming.acquire()
                threading.Thread(target=self._welcome, args=(end,), name="gang caller", daemon=True).start()

    def _welcome(self, end: socket.socket) -> None:
        try:
            key = _rank_key(answer(end, self._token))
        except (HandshakeError, OSError, LookupError, TypeError, ValueError) as error:
            log.warning("a connection to this worker was refused: %s", error)
            end.close()
            return
        finally:
            self._welcoming.release()
        _keep_alive(end)
        with self._lock:
            remote = self._expected.pop(key, None)
            is_over = key[0] in self._over
            if remote is None and not is_over:
                replaced = self._early.pop(key, None)
                self._early[key] = time.monotonic(), end
        if remote is not None:
            remote.arrive(end)
        elif is_over:
            end.close()
        elif replaced is not None:
            replaced[1].close()

    def _send_away_outdated(self) -> None:
        """Close connections for attempts that this worker did not start in time."""
        now = time.monotonic()
        with self._lock:
            outdated = [key for key, (since, _) in self._early.items() if now - since > JOIN_S]
            ends = [self._early.pop(key)[1] for key in outdated]
        for end in ends:
            end.close()


def _rank_key(hello: dict[str, Any]) -> RankKey:
    return (str(hello["experiment"]), str(hello["task"]), int(hello["attempt"])), int(hello["rank"])


def _keep_alive(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in _KEEPALIVE:
        end.setsockopt(socket.IPPROTO_TCP, option, value)
