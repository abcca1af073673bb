"""Messages between agent and child: whole, in order, however they arrive."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from cerebro.agent.channel import Channel


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """One end as a channel, the other as the bare socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


def test_a_message_that_arrives_in_pieces_is_not_lost(pair: tuple[Channel, socket.socket]) -> None:
    """Until its end is there nothing is pending, and the channel is not taken for closed."""
    channel, other = pair
    line = json.dumps({"is": "done"}).encode() + b"\n"
    other.sendall(line[:5])
    assert channel.pending() is None
    assert not channel.is_closed
    other.sendall(line[5:])
    assert channel.pending() == {"is": "done"}


def test_a_message_larger_than_the_sockets_buffer_arrives(pair: tuple[Channel, socket.socket]) -> None:
    """Many metrics make a long line."""
    channel, other = pair
    message = {"metrics": {f"metric-{number}": number / 3 for number in range(50_000)}}
    sender = threading.Thread(target=Channel(other).send, args=(message,))
    sender.start()
    assert channel.receive() == message
    sender.join()


def test_what_was_said_before_the_end_is_heard(pair: tuple[Channel, socket.socket]) -> None:
    """Then the channel is closed, as often as one asks."""
    channel, other = pair
    other.sendall(b'{"is":"done"}\n{"is":')
    other.close()
    assert channel.pending() == {"is": "done"}
    assert channel.pending() is None
    assert channel.is_closed
    assert channel.receive() is None
