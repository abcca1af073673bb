"""Workers of a gang connect to the leader, authenticate, and detect lost members."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.gangs import Gang, Member
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.errors import ClusterError
from cerebro.worker.agent.gangs.endpoint import GangEndpoint
from cerebro.worker.agent.gangs.handshake import HandshakeError
from cerebro.worker.agent.gangs.member import decline
from cerebro.worker.agent.gangs.remote import RemoteRank
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import TO_MEMBER, Failed, Ready, Rendezvous
from tests.kvs_api.occupancy_contract import sub_epoch_body
from tests.waiting import HANG_S

ATTEMPT = ("one", "fit-1/train/m00/e1/p0+p1", 1)
TOKEN = "of this cluster"


HOSTS = ("127.0.0.1", "::1")


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Iterator[GangEndpoint]:
    """The leader's endpoint."""
    host = getattr(request, "param", HOSTS[0])
    try:
        gang_endpoint = GangEndpoint(host, 0, TOKEN)
    except ClusterError as error:
        if host == HOSTS[0]:
            raise
        pytest.skip(f"this machine has no IPv6: {error}")
    yield gang_endpoint
    gang_endpoint.close()


@pytest.fixture
def rank() -> Iterator[RemoteRank]:
    """Rank 1 of the attempt, on another worker."""
    remote_rank = RemoteRank("worker-1, device 0", join_s=30)
    yield remote_rank
    remote_rank.kill()


def received(end: socket.socket) -> bytes:
    """Return the first data that the other worker receives."""
    end.settimeout(HANG_S)
    return end.recv(4096)


@pytest.mark.parametrize("endpoint", HOSTS, indirect=True)
@pytest.mark.parametrize("comes_first", [True, False])
def test_early_messages_reach_a_late_member(
    endpoint: GangEndpoint, rank: RemoteRank, comes_first: bool
) -> None:
    """The member may connect before the leader knows the attempt, or after the leader's first message."""
    if not comes_first:
        endpoint.expect(ATTEMPT, {1: rank})
        rank.send(Rendezvous(address="here"))
    with endpoint.connect(endpoint.address, ATTEMPT, 1) as end:
        if comes_first:
            endpoint.expect(ATTEMPT, {1: rank})
            rank.send(Rendezvous(address="here"))
        assert b'"Rendezvous"' in received(end)
        Channel(end, TO_MEMBER).send(Ready())
        assert rank.channel.receive() == Ready()
    assert rank.channel.receive() is None
    assert rank.reap().kind is FailureKind.MEMBER_LOST


def test_a_member_with_a_wrong_token_is_refused(endpoint: GangEndpoint, rank: RemoteRank) -> None:
    """Wrong proofs and other protocols are rejected, and a valid member can still connect."""
    endpoint.expect(ATTEMPT, {1: rank})
    stranger = GangEndpoint("127.0.0.1", 0, "of another cluster")
    try:
        with pytest.raises(HandshakeError):
            stranger.connect(endpoint.address, ATTEMPT, 1)
        with socket.create_connection(("127.0.0.1", int(endpoint.address.rpartition(":")[2]))) as end:
            end.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(4096))
            end.settimeout(HANG_S)
            while end.recv(4096):
                pass
    except ConnectionResetError:
        pass  # discarded unread data
    finally:
        stranger.close()
    rank.send(Rendezvous(address="here"))
    with endpoint.connect(endpoint.address, ATTEMPT, 1) as end:
        assert b'"Rendezvous"' in received(end)


def test_a_leader_without_the_token_is_refused(endpoint: GangEndpoint) -> None:
    """Authentication is mutual."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            end, _ = listener.accept()
            with end:
                end.sendall(bytes(32))
                end.recv(4096)
                end.sendall(bytes(32))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(HandshakeError, match="token"):
            endpoint.connect(f"127.0.0.1:{listener.getsockname()[1]}", ATTEMPT, 1)
        thread.join()


def test_a_member_that_does_not_connect_counts_as_lost() -> None:
    """The error after the timeout names the worker."""
    rank = RemoteRank("worker-1, device 0", join_s=0.01)
    assert rank.channel.receive() is None
    failure = rank.reap()
    assert (failure.kind, failure.message) == (
        FailureKind.MEMBER_LOST,
        "its worker did not come within 0.01 s",
    )


def test_a_foreign_address_is_an_error_at_startup() -> None:
    """The error names the setting to change."""
    with pytest.raises(ClusterError, match="CEREBRO_ADDRESS"):
        GangEndpoint("192.0.2.1", 0, TOKEN)


def is_sent_away(end: socket.socket) -> bool:
    """Return True if the leader closes the connection."""
    end.settimeout(HANG_S)
    return not end.recv(1)


def test_connections_for_an_ended_attempt_are_closed(endpoint: GangEndpoint, rank: RemoteRank) -> None:
    """Connections are closed for early and late members, and for a rank that is gone."""
    with endpoint.connect(endpoint.address, ATTEMPT, 1) as early:
        endpoint.forget(ATTEMPT)
        assert is_sent_away(early)
    with endpoint.connect(endpoint.address, ATTEMPT, 1) as late:
        assert is_sent_away(late)
    other = (*ATTEMPT[:2], 2)
    endpoint.expect(other, {1: rank})
    rank.kill()
    with endpoint.connect(endpoint.address, other, 1) as end:
        assert is_sent_away(end)


def test_connections_for_an_attempt_that_never_starts_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member's connection is closed after a timeout."""
    monkeypatch.setattr("cerebro.worker.agent.gangs.endpoint._POLL_S", 0.01)
    endpoint = GangEndpoint("127.0.0.1", 0, TOKEN)
    with endpoint.connect(endpoint.address, ATTEMPT, 1) as end:
        monkeypatch.setattr("cerebro.worker.agent.gangs.endpoint.JOIN_S", 0.0)
        assert is_sent_away(end)
    endpoint.close()


def test_a_terminated_member_notifies_the_leader(endpoint: GangEndpoint, rank: RemoteRank) -> None:
    """Its gang stops at once, and the attempt does not count as a failure."""
    endpoint.expect(ATTEMPT, {1: rank})
    gang = Gang(
        address=endpoint.address,
        members=(Member(worker="worker-0", partition=0), Member(worker="worker-1", partition=1)),
        rows=(1, 1),
    )
    body = sub_epoch_body(ATTEMPT[1], ParallelPlan(technique="ddp", workers=2)).model_copy(
        update={"gang": gang}
    )
    item = InboxItem(seq=1, experiment="one", task=ATTEMPT[1], attempt=1, member=1, body=body)
    thread = threading.Thread(target=decline, args=(item, endpoint, "SIGTERM: worker-1 was asked to end"))
    thread.start()
    message = rank.channel.receive()
    assert isinstance(message, Failed)
    failure = message.failure
    assert (failure.kind, failure.message) == (FailureKind.PREEMPTED, "SIGTERM: worker-1 was asked to end")
    rank.kill()
    thread.join(HANG_S)
    assert not thread.is_alive()


def test_ranks_follow_members_and_their_devices() -> None:
    """Ranks follow the order of members and their devices."""
    members = tuple(
        Member(worker=f"worker-{n}", partition=n, devices=tuple(range(count)))
        for n, count in enumerate((2, 1, 3))
    )
    gang = Gang(address="a:1", members=members, rows=(1, 1, 1))
    assert [gang.member_of(rank) for rank in range(6)] == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
