"""Errors are attributed to the machine, possibly the machine, or user code, with real driver and torch texts."""

from __future__ import annotations

import pytest

from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import DeviceError
from cerebro.worker.child.task_loop import failure_of
from cerebro.worker.health.device_errors import Blame, blame

_MORE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)


class AcceleratorError(RuntimeError):
    """The error of torch with the runtime's error number."""

    def __init__(self, message: str, error_code: int) -> None:
        super().__init__(message)
        self.error_code = error_code


AcceleratorError.__module__ = "torch"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"CUDA error: uncorrectable ECC error encountered{_MORE}"),
        RuntimeError("CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"),
        RuntimeError(f"CUDA error: CUDA-capable device(s) is/are busy or unavailable{_MORE}"),
        RuntimeError("NVML_ERROR_GPU_IS_LOST"),
        RuntimeError("GPU 0000:65:00.0: GPU has fallen off the bus."),
        RuntimeError("Failed to initialize NVML: Driver/library version mismatch"),
        RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
        AcceleratorError("CUDA error: words of a newer runtime", 214),
        DeviceError("this worker registered a GPU, but torch finds none any more"),
    ],
)
def test_errors_of_a_broken_machine_are_device_failures(error: Exception) -> None:
    """The task's devices do not matter."""
    assert blame(error, has_gpu=False) is Blame.DEVICE
    assert failure_of(error).kind is FailureKind.DEVICE


@pytest.mark.parametrize(
    "message",
    [
        f"CUDA error: no CUDA-capable device is detected{_MORE}",
        "No CUDA GPUs are available",
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "The NVIDIA driver on your system is too old (found version 11040).",
        "CUDA driver version is insufficient for CUDA runtime version",
    ],
)
def test_a_missing_gpu_is_a_device_failure_only_if_one_was_assigned(message: str) -> None:
    """Without an assigned GPU the error is the user's."""
    assert failure_of(RuntimeError(message), has_gpu=True).kind is FailureKind.DEVICE
    assert failure_of(RuntimeError(message)).kind is FailureKind.USER_ERROR


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"CUDA error: an illegal memory access was encountered{_MORE}"),
        RuntimeError(f"CUDA error: unspecified launch failure{_MORE}"),
        RuntimeError(
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb)`"
        ),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError(f"CUDA error: misaligned address{_MORE}"),
        AcceleratorError("CUDA error: words of a newer runtime", 700),
    ],
)
def test_ambiguous_errors_may_be_device_failures(error: Exception) -> None:
    """It stays the user's error, with a note that the device may be broken."""
    found = failure_of(error, has_gpu=True)
    assert (found.kind, found.may_be_device) == (FailureKind.USER_ERROR, True)


def test_the_cause_counts_and_handled_errors_do_not() -> None:
    """User code may wrap the error, or fail for another reason after it handled one."""
    ecc = RuntimeError("CUDA error: uncorrectable ECC error encountered")
    wrapped = ValueError("cannot train")
    wrapped.__cause__ = ecc
    later = KeyError("label")
    later.__context__ = ecc
    assert blame(wrapped, has_gpu=True) is Blame.DEVICE
    assert blame(later, has_gpu=True) is Blame.CODE
