"""GPU figures that Cerebro reads from the driver (NVML), compared with torch's and nvidia-smi's; the node check."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.section import GB, Row, Setting, part
from cerebro.runtime.usage.gpus import Gpus
from cerebro.worker.training.node_check import probes

_SIDE = 8192
_SAMPLES = 8


def measure(setting: Setting) -> Iterator[Row]:
    """Compare names, memory, utilisation and visibility; run the node check."""
    if setting.is_gpu:
        for what, work in (("figures", _figures), ("visible GPUs", _visible), ("utilisation", _use)):
            yield from part(setting, what, 10, work)
    yield from part(setting, "node check", 10, partial(_node_check, setting))


def _figures() -> Iterator[Row]:
    gpus = Gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    torch.ones(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    began = time.perf_counter()
    (usage,) = gpus.measure()
    read_s = time.perf_counter() - began
    smi = [float(text) for text in _nvidia_smi("memory.used,memory.total").split(",")]
    properties = torch.cuda.get_device_properties(0)
    assert usage.memory_total_bytes is not None
    assert usage.memory_bytes is not None
    yield Row(
        what="the driver's name and identity of the GPU are torch's",
        measured=f"{gpus.names[0]}, {gpus.found[0].uuid}; torch: {properties.name}, {properties.uuid}",
        values={"name": gpus.names[0]},
        holds=gpus.names[0] == properties.name and gpus.found[0].uuid == f"GPU-{properties.uuid}",
    )
    used = {"cerebro": usage.memory_bytes / GB, "torch": (total - free) / GB, "smi": smi[0] * 2**20 / GB}
    totals = {"cerebro": usage.memory_total_bytes / GB, "torch": total / GB, "smi": smi[1] * 2**20 / GB}
    yield Row(
        what="memory in use",
        measured=f"{used['cerebro']:.2f} GB; torch {used['torch']:.2f}, nvidia-smi {used['smi']:.2f}",
        values=used,
        holds=abs(used["cerebro"] - used["smi"]) < 1.0,
    )
    yield Row(
        what="memory of the GPU",
        measured=f"{totals['cerebro']:.2f} GB; torch {totals['torch']:.2f}, nvidia-smi {totals['smi']:.2f}",
        values=totals,
        holds=abs(totals["cerebro"] / totals["smi"] - 1) < 0.01,
    )
    yield Row(what="one reading of all figures", measured=f"{1e3 * read_s:.2f} ms", values={"read_s": read_s})
    problems = [each.text for each in gpus.problems(1)]
    yield Row(
        what="problems that the driver reports",
        measured="; ".join(problems) or "none",
        values={"problems": problems},
        holds=not any(each.is_broken for each in gpus.problems(1)),
    )


def _visible() -> Iterator[Row]:
    """Check that torch finds the GPU by the identity that workers give their children, without starting CUDA."""
    uuid = Gpus(os.environ.get("CUDA_VISIBLE_DEVICES")).found[0].uuid
    program = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.is_initialized())"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    yield Row(
        what="a child with the GPU's identity in CUDA_VISIBLE_DEVICES finds one GPU",
        measured=done.stdout.strip() or done.stderr[-300:],
        values={},
        holds=done.stdout.split() == ["True", "1", "False"],
    )


def _use() -> Iterator[Row]:
    """Measure utilisation, idle and during matrix products."""
    gpus = Gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    time.sleep(1.5)
    idle = gpus.used_share(0)
    left, right = (torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            for _ in range(10):
                left @ right  # type: ignore[unused-ignore]
            torch.cuda.synchronize()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        time.sleep(1.5)
        busy, smi = [], []
        for _ in range(_SAMPLES):
            time.sleep(0.2)
            busy.append(gpus.used_share(0) or 0.0)
            smi.append(float(_nvidia_smi("utilization.gpu")) / 100)
    finally:
        is_over.set()
        worker.join()
    mean, smi_mean = sum(busy) / len(busy), sum(smi) / len(smi)
    yield Row(
        what="utilisation while matrices are multiplied",
        measured=f"{mean:.0%}, nvidia-smi {smi_mean:.0%}; idle before {-1 if idle is None else idle:.0%}",
        values={"busy": mean, "smi": smi_mean, "idle": idle},
        holds=mean > 0.8 and abs(mean - smi_mean) < 0.2,
    )


def _node_check(setting: Setting) -> Iterator[Row]:
    for name in ("shards", "checkpoints"):
        (setting.folder / name).mkdir()
    for probe in probes(
        setting.folder / "shards", setting.folder / "checkpoints", expects_gpu=setting.is_gpu
    ):
        rate = "" if probe.rate is None else f", {probe.rate:.0f} products/s"
        yield Row(
            what=f"node check: {probe.name}",
            measured=f"{probe.problem or probe.note or 'no problem'}, {probe.seconds or 0:.1f} s{rate}",
            values={"seconds": probe.seconds, "rate": probe.rate},
            holds=not probe.problem,
        )


def _nvidia_smi(query: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
