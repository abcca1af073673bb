"""Gangs: workers that train a sub-epoch together."""

from __future__ import annotations

from pydantic import Field

from cerebro.contract.base import Contract, Devices, Name


class Member(Contract):
    """One worker of a gang.

    Attributes:
        worker: its name.
        partition: partition that it holds and reads.
        devices: its devices for the sub-epoch.
    """

    worker: Name
    partition: int = Field(ge=0)
    devices: Devices = (0,)


class Gang(Contract):
    """Workers that train a sub-epoch together, each on its own partition.

    Attributes:
        address: address of the leader.
        members: all workers, by ascending partition; the first is the leader.
        rows: rows of each member's partition.
    """

    address: str
    members: tuple[Member, ...] = Field(min_length=2)
    rows: tuple[int, ...]

    def ranks_of(self, number: int) -> range:
        """Return a member's ranks, one per device. Members are numbered in order."""
        begin = sum(len(member.devices) for member in self.members[:number])
        return range(begin, begin + len(self.members[number].devices))

    def member_of(self, rank: int) -> tuple[int, int]:
        """Number of the member that has a rank, and which of its ranks that is."""
        number = next(n for n in range(len(self.members)) if rank in self.ranks_of(n))
        return number, rank - self.ranks_of(number)[0]
