"""The rendezvous folder of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.errors import StorageFullError
from cerebro.techniques.ranks import RankGroup
from tests.small_volume import fill, small_volume
from tests.waiting import HANG_S

pytestmark = pytest.mark.processes


def test_a_full_rendezvous_volume_is_named(tmp_path: Path) -> None:
    """Without the check torch reports a failed store like a lost rank."""
    with small_volume(tmp_path / "ranks", "64k") as volume:
        folder = volume / "place"
        folder.mkdir()
        fill(volume)
        with pytest.raises(StorageFullError, match=f"no space to write in {folder}, the rendezvous folder"):
            RankGroup.join(folder, rank=0, size=2, device="cpu", timeout_s=HANG_S)
