"""Messages between agent and child arrive complete and in order."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.worker.protocol import channel as channels
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import FROM_CHILD, FromChild, Ready, Rendezvous, encode


@pytest.fixture
def pair() -> Iterator[tuple[Channel[FromChild], socket.socket]]:
    """A channel, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, FROM_CHILD), theirs


def test_a_message_that_arrives_in_pieces_is_not_lost(pair: tuple[Channel[FromChild], socket.socket]) -> None:
    """Until it is complete, nothing is pending and the channel is open."""
    channel, other = pair
    line = encode(Ready()) + b"\n"
    other.sendall(line[:5])
    assert channel.pending() is None
    assert not channel.is_closed
    other.sendall(line[5:])
    assert channel.pending() == Ready()


# --- noise -------------------------------------------------------------------------------------------

NOISE = [
    b"\n",
    b"garbage\n",
    b"half",
    b"[1]\n",
    b'"text"\n',
    b"7\n",
    b"\xff\x00\n",
    b"[" * 5000 + b"\n",
    b'{"type": "Ready"',
    b'{"type": "Rendezvous"}\n',
]


@given(st.lists(st.one_of(st.sampled_from(NOISE), st.binary(max_size=40), st.integers(0, 9)), max_size=20))
def test_messages_arrive_through_any_noise(sent: list[bytes | int]) -> None:
    """Messages keep their order; noise is counted and quoted in printable characters."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        one, other = Channel(ours, FROM_CHILD), Channel(theirs, FROM_CHILD)
        for piece in sent:
            if isinstance(piece, int):
                other.send(Rendezvous(address=str(piece)))
            else:
                theirs.sendall(piece)
        other.send(Ready())
        found: list[object] = []
        while (message := one.receive()) != Ready():
            assert message is not None
            found.append(message)
        assert found == [Rendezvous(address=str(piece)) for piece in sent if isinstance(piece, int)]
        one.last_refused.encode()
        assert len(one.last_refused) <= 100


def test_a_line_without_end_is_dropped_and_not_kept(
    pair: tuple[Channel[FromChild], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little of the line stays in memory, and the next message arrives."""
    channel, other = pair
    monkeypatch.setattr(channels, "MAX_LINE", 1 << 20)

    def talk() -> None:
        for _ in range(300):
            other.sendall(b"z" * (1 << 16))
        Channel(other, FROM_CHILD).send(Ready())

    sender = threading.Thread(target=talk)
    sender.start()
    held = []
    while (message := channel.pending()) is None:
        held.append(sum(map(len, channel._parts)))
    sender.join()
    assert message == Ready()
    assert max(held) <= 1 << 20
    assert (channel.num_refused, channel.last_refused[:3]) == (1, "zzz")


@pytest.mark.slow
@pytest.mark.processes
def test_a_flood_of_messages_does_not_block_the_reader(
    pair: tuple[Channel[FromChild], socket.socket],
) -> None:
    """Each call reads a limited amount."""
    channel, other = pair
    ended = threading.Event()

    def talk() -> None:
        with suppress(OSError):
            while not ended.is_set():
                other.sendall(b"noise\n" * 1000)

    sender = threading.Thread(target=talk)
    sender.start()
    for _ in range(5):
        assert channel.pending() is None
    ended.set()
    channel.close()
    sender.join()


@settings(deadline=None)
@given(
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=8),
    read=st.integers(0, 7),
    half=st.integers(0, 30),
)
def test_a_second_reader_continues_where_the_first_stopped(texts: list[str], read: int, half: int) -> None:
    """It gets the handed-over message, the buffered ones and the start of an incomplete one."""
    messages = [Rendezvous(address=text) for text in texts]
    stream = b"".join(encode(message) + b"\n" for message in messages)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        cut = max(0, len(stream) - half)
        first, read = Channel(ours, FROM_CHILD), min(read, stream[:cut].count(b"\n") - 1)
        theirs.sendall(stream[:cut])
        observed = [first.pending() for _ in range(read)]
        last = first.pending()
        left = b"" if last is None else first.take_unread(last)
        second = Channel(ours, FROM_CHILD, left)
        theirs.sendall(stream[cut:])
        theirs.shutdown(socket.SHUT_WR)
        while (message := second.receive()) is not None:
            observed.append(message)
        assert last is None or observed == messages
