"""After the warm-up a process can still fork."""

from __future__ import annotations

import pytest
import torch

from cerebro.worker.training.seeds import has_cpu_only
from cerebro.worker.training.warm_up import warm_up_before_fork


@pytest.mark.parametrize(
    ("cuda", "passes"),
    [
        pytest.param(None, 2, marks=pytest.mark.skipif(not has_cpu_only(), reason="torch is built for GPUs")),
        ("13.0", 0),
    ],
)
def test_the_warm_up_of_a_cuda_build_runs_no_backward_pass(
    cuda: str | None, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On such a build the first backward pass starts a thread per GPU, and later forks cannot train."""
    backward, calls = torch.Tensor.backward, []

    def counted(tensor: torch.Tensor) -> None:
        calls.append(tensor)
        backward(tensor)  # type: ignore[no-untyped-call]

    threads = torch.get_num_threads()
    monkeypatch.setattr(torch.Tensor, "backward", counted)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    try:
        warm_up_before_fork()
    finally:
        torch.set_num_threads(threads)
    assert len(calls) == passes
