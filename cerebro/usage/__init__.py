"""What a worker uses of its machine: processor, memory, GPUs, the disk below its shards.

Never imports torch: the agent stays small, and a driver that hangs must not be asked by the process that trains. What
cannot be measured is `None`, which is not 0.
"""

from cerebro.usage.gpus import Gpus
from cerebro.usage.meter import PAUSE_S, Meter, Sources
from cerebro.usage.volumes import VolumeCollector

__all__ = ["PAUSE_S", "Gpus", "Meter", "Sources", "VolumeCollector"]
