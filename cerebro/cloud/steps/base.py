"""What a part of a cluster must be able to do."""

from __future__ import annotations

from typing import Protocol

from cerebro.cloud.site import Site
from cerebro.cloud.world import World


class Step(Protocol):
    """A part that is made. Safe to do twice: `do` looks at the world it is given and makes what is missing."""

    @property
    def name(self) -> str:
        """As messages call it."""

    def is_done(self, world: World) -> bool:
        """Whether the part is there, as the file wants it."""

    def do(self, site: Site, world: World) -> None:
        """Make what is missing of it; returns when it is there.

        Raises:
            ProvisionError: it could not be made; doing it again goes on from there.
        """

    def after(self, world: World) -> World:
        """The world with this part in it; ids that only AWS can give are placeholders. For plans and dry runs."""


class Removal(Protocol):
    """A part that is removed. Safe to do twice, and after a half-made creation."""

    @property
    def name(self) -> str:
        """As messages call it."""

    def is_there(self, world: World) -> bool:
        """Whether anything of it is left."""

    def undo(self, site: Site, world: World) -> None:
        """Remove all of it; returns when it is gone.

        Raises:
            ProvisionError: something is left; the message says what and why.
        """
