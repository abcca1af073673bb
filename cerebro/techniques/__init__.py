"""Techniques: how one sub-epoch of training uses the devices of its worker.

A technique never changes what is trained: batch size, order of rows, number of steps and precision are the model's.
What a user's loop computes on one device, it computes by every technique, up to rounding. Importing this needs no
torch.
"""

from cerebro.spec import Hints
from cerebro.techniques.base import (
    Group,
    Memory,
    ModelFacts,
    Params,
    Place,
    Share,
    Technique,
)
from cerebro.techniques.checkpointing import Checkpointing
from cerebro.techniques.ddp import Ddp
from cerebro.techniques.fsdp import Fsdp, Offload
from cerebro.techniques.named import resolve
from cerebro.techniques.pipeline import Pipeline
from cerebro.techniques.single import Single
from cerebro.techniques.tensor import Tensor

__all__ = [
    "Checkpointing",
    "Ddp",
    "Fsdp",
    "Group",
    "Hints",
    "Memory",
    "ModelFacts",
    "Offload",
    "Params",
    "Pipeline",
    "Place",
    "Share",
    "Single",
    "Technique",
    "Tensor",
    "resolve",
]
