"""Error messages that indicate a faulty machine, definitely or possibly: one table of driver and library texts.

The child's task loop calls `blame` for each exception, and the agent's `execution` calls `device_fault_line` for a
process that died without one. A failure that blames the device lets the controller exclude the worker; this module only
classifies. Sources: ``cudaGetErrorString`` and the status names of the runtime, driver and libraries, as torch,
TensorFlow and pynvml quote them (CUDA Toolkit: Runtime API, 6.36 Data types; NVML: Return values). torch also reports
the runtime's number as ``error_code`` of `torch.AcceleratorError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from cerebro.errors import DeviceError
from cerebro.runtime.tracebacks import line_of


class Blame(StrEnum):
    """Cause of an error."""

    DEVICE = "device"  # the machine
    UNSURE = "unsure"  # the machine or a faulty kernel
    CODE = "code"  # user code or another cause


_BROKEN = (
    "uncorrectable ECC error",  # cudaErrorECCUncorrectable, 214
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "cudaErrorECCUncorrectable",
    "uncorrectable NVLink error",  # cudaErrorNvlinkUncorrectable, 220
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "fallen off the bus",  # the driver, Xid 79
    "GPU is lost",  # NVML_ERROR_GPU_IS_LOST
    "NVML_ERROR_GPU_IS_LOST",
    "Driver/library version mismatch",  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
    "system has unsupported display driver / cuda driver combination",  # cudaErrorSystemDriverMismatch, 803
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    "system not yet initialized",  # cudaErrorSystemNotReady, 802: the fabric manager does not run
    "CUDA_ERROR_SYSTEM_NOT_READY",
    "CUDA-capable device(s) is/are busy or unavailable",  # cudaErrorDevicesUnavailable, 46
)
"""Messages that user code cannot cause."""
_GONE = (
    "no CUDA-capable device is detected",  # cudaErrorNoDevice, 100
    "CUDA_ERROR_NO_DEVICE",
    "No CUDA GPUs are available",  # torch
    "Found no NVIDIA driver on your system",  # torch
    "CUDA driver version is insufficient for CUDA runtime version",  # cudaErrorInsufficientDriver, 35
    "driver on your system is too old",  # torch
    "forward compatibility was attempted on non supported HW",  # cudaErrorCompatNotSupportedOnDevice, 804
)
"""Messages that blame the machine if the task has a GPU; otherwise user code lacks one."""
_MAYBE = (
    "an illegal memory access was encountered",  # cudaErrorIllegalAddress, 700
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "unspecified launch failure",  # cudaErrorLaunchFailure, 719
    "CUDA_ERROR_LAUNCH_FAILED",
    "the launch timed out and was terminated",  # cudaErrorLaunchTimeout, 702
    "hardware stack error",  # cudaErrorHardwareStackError, 714
    "an illegal instruction was encountered",  # cudaErrorIllegalInstruction, 715
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "misaligned address",  # cudaErrorMisalignedAddress, 716
    "operation not supported on global/shared address space",  # cudaErrorInvalidAddressSpace, 717
    "invalid program counter",  # cudaErrorInvalidPc, 718
    "CUDA error: unknown error",  # cudaErrorUnknown, 999
    "CUDA unknown error",  # torch, at the first use
    "CUDA error: initialization error",  # cudaErrorInitializationError, 3
    "CUDA_ERROR_UNKNOWN",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_MAPPING_ERROR",
    "CUSOLVER_STATUS_EXECUTION_FAILED",
    "CUSPARSE_STATUS_EXECUTION_FAILED",
    "CUFFT_EXEC_FAILED",
    "CUFFT_INTERNAL_ERROR",
    "ncclUnhandledCudaError",
    "nvmlInit_v2_() INTERNAL ASSERT FAILED",  # torch's allocator, where the driver has gone, or memory
)
"""Messages of a faulty kernel or of a bad memory cell.

Excludes a failed assertion in a kernel ("device-side assert triggered") and an invalid device number: errors of code.
"""
_NUMBERS = {
    **dict.fromkeys((46, 214, 220, 802, 803), Blame.DEVICE),
    **dict.fromkeys((700, 702, 714, 715, 716, 717, 718, 719), Blame.UNSURE),
}
"""Cause by cudaError, for torch's own exception types."""
_LINKS = 5
"""Maximum exceptions to inspect in a chain of causes."""


def blame(error: BaseException, *, has_gpu: bool) -> Blame:
    """Classify the cause of a task's error.

    Args:
        has_gpu: True if the task has a GPU.
    """
    found = [_of_one(each, has_gpu) for each in _causes(error)]
    return next((each for each in (Blame.DEVICE, Blame.UNSURE) if each in found), Blame.CODE)


def device_fault_line(text: str) -> str:
    """Return the log line that shows a faulty machine, or "". For processes that died without an exception."""
    return next((line for line in text.splitlines() if any(known in line for known in _BROKEN)), "")


def _of_one(error: BaseException, has_gpu: bool) -> Blame:
    if isinstance(error, DeviceError):
        return Blame.DEVICE
    message, number = line_of(error), getattr(error, "error_code", None)
    if any(text in message for text in _BROKEN) or (has_gpu and any(text in message for text in _GONE)):
        return Blame.DEVICE
    if any(text in message for text in _MAYBE):
        return Blame.UNSURE
    is_torchs = type(error).__module__.startswith("torch") and isinstance(number, int)
    return _NUMBERS.get(number, Blame.CODE) if is_torchs and number is not None else Blame.CODE


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its explicit causes, but not exceptions that were only being handled."""
    link: BaseException | None = error
    for _ in range(_LINKS):
        if link is None:
            return
        yield link
        link = link.__cause__
