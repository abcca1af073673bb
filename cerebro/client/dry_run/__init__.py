"""A dry run: user code called on a few rows and one batch in the process of its user, by the code that workers run.

Nothing is sent, nothing stays: not on the cluster, not on this machine but for what user code itself leaves, and the
global random generators are put back. torch is loaded only if there is something to train.
"""

from cerebro.client.dry_run.outcome import DryRun
from cerebro.client.dry_run.running import dry_run

__all__ = ["DryRun", "dry_run"]
