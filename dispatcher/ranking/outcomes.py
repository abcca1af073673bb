"""Messages between the page and the child process that compares tested models. Imports no NumPy."""

from __future__ import annotations

import hashlib

from pydantic import ConfigDict, Field

from cerebro.contract.base import Contract
from cerebro.figures.ranking.results import Ranking, RankingRequest
from cerebro.figures.ranking.rows import ComparedRows, RowsRequest

Request = RankingRequest | RowsRequest


class Job(Contract):
    """Input of the process.

    Attributes:
        shared: the shared volume.
        is_local: True on the user's own machine, where objects may be in any folder.
    """

    request: Request
    shared: str
    is_local: bool = False
    cpu_s: int


class Thumbnail(Contract):
    """An image of a kind that browsers show and that contains no script.

    Attributes:
        kind: media type, such as "image/png".
        content: the file.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    kind: str
    content: bytes

    @property
    def name(self) -> str:
        """Name in addresses: equal images have equal names."""
        return hashlib.sha256(self.content).hexdigest()[:32]


class Outcome(Contract):
    """Output of the process: a ranking or rows, or the reason why there are none.

    Attributes:
        thumbnails: thumbnails of the rows, by name.
        is_temporary: True if a later attempt may succeed.
    """

    ranking: Ranking | None = None
    rows: ComparedRows | None = None
    thumbnails: dict[str, Thumbnail] = Field(default_factory=dict)
    reason: str = ""
    is_temporary: bool = False
