"""A loop over sockets whose turn costs what happens in it, however many connections lie idle.

waitress asks each of its sockets in each turn whether it wants to read or write. This loop asks one again only after
something happened to it: it had an event, or a thread has called `look`. The kernel (epoll) keeps what each wants.

Knows of sockets what `Watched` says.
"""

from __future__ import annotations

import math
import select
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

_LEFT = select.EPOLLRDHUP


class Watched(Protocol):
    """A connection, a listener, or the pipe by which threads wake the loop."""

    @property
    def awaits_end(self) -> bool:
        """Whether it is to be closed once its peer leaves, although nothing is read of it now."""

    def readable(self) -> bool:
        """Whether it wants to read."""

    def writable(self) -> bool:
        """Whether it wants to write, or to be closed."""


class EventLoop:
    """One thread runs it; `look` is safe in any.

    Args:
        sockets: all of them by descriptor. Whoever adds one to it calls `begin`, who takes one away `forget`.
        handle: does what the events of a socket ask for.
    """

    def __init__(self, sockets: MutableMapping[int, Any], handle: Callable[[Any, int], None]) -> None:
        self._sockets, self._handle = sockets, handle
        self._epoll = select.epoll()
        self._wanted: dict[int, int] = {}
        """Descriptor -> the events that the kernel was told of."""
        self._changed: deque[int] = deque()
        self.wakes_at = 0.0
        """When the present turn ends if nothing happens, as `time.monotonic`."""

    def begin(self, descriptor: int) -> None:
        """A socket was added. Nothing is known of it, even if another one had its number."""
        self._wanted.pop(descriptor, None)
        self._changed.append(descriptor)

    def look(self, descriptor: int | None) -> None:
        """What a socket wants may have changed. Whoever calls it in another thread wakes the loop afterwards."""
        if descriptor is not None:
            self._changed.append(descriptor)

    def forget(self, descriptor: int | None) -> None:
        """A socket is about to be closed."""
        if descriptor is not None and self._wanted.pop(descriptor, 0):
            self._epoll.unregister(descriptor)

    def run(self, timeout_s: Callable[[], float]) -> None:
        """Turn until no socket is left.

        Args:
            timeout_s: asked in each turn, how long it may wait.
        """
        always = {fd for fd, one in self._sockets.items() if not hasattr(one, "requests")}
        while self._sockets:
            always &= self._sockets.keys()
            self.wakes_at = math.inf  # whoever has something earlier while this is computed wakes the loop
            wait_s = timeout_s()
            self.wakes_at = time.monotonic() + wait_s
            for descriptor in always:
                self._see(descriptor)
            while self._changed:
                self._see(self._changed.popleft())
            # In order: of two listeners the one is not always asked before the other, as the kernel would have it.
            for descriptor, events in sorted(self._epoll.poll(max(0.0, wait_s))):
                one = self._sockets.get(descriptor)
                if one is not None:
                    self._handle(one, events)
                    if descriptor not in always:
                        self._changed.append(descriptor)

    def _see(self, descriptor: int) -> None:
        """Tell the kernel what a socket wants, if that has changed."""
        one = self._sockets.get(descriptor)
        if one is None:
            return
        wanted = select.EPOLLIN | select.EPOLLPRI if one.readable() else 0
        if not one.accepting and one.writable():
            wanted |= select.EPOLLOUT
        if not wanted and getattr(one, "awaits_end", False):
            wanted = _LEFT
        known = self._wanted.get(descriptor, 0)
        if wanted == known:
            return
        if not wanted:
            # A peer that leaves would be told of again and again.
            self._epoll.unregister(descriptor)
            del self._wanted[descriptor]
            return
        (self._epoll.modify if known else self._epoll.register)(descriptor, wanted)
        self._wanted[descriptor] = wanted
