"""Numeric environment variables of services, with their bounds and error messages.

Settings of worker, controller and kvs_api read their variables through it. All are in one module, because `cerebro up`
calls `check` first: a service that refuses a number at its start would restart repeatedly, with the reason only in a
log. Defaults are in the services' settings.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cerebro.contract.rest.api import MAX_LEASE_S
from cerebro.errors import ClusterError
from cerebro.runtime.isolation import sandbox_settings


@dataclass(frozen=True, kw_only=True)
class NumericSetting:
    """A numeric environment variable. Unset and empty are the same.

    Attributes:
        name: name of the variable.
        expected: description of valid values, for errors.
        is_integer: True if it must be an integer.
        minimum, maximum: inclusive bounds.
    """

    name: str
    expected: str
    is_integer: bool = False
    minimum: float
    maximum: float = math.inf

    def of(self, environment: Mapping[str, str]) -> float | None:
        """Return the number, or `None` if unset.

        Raises:
            ClusterError: the value is invalid.
        """
        text = environment.get(self.name, "")
        if not text:
            return None
        number: float = math.nan
        with contextlib.suppress(ValueError):
            number = int(text) if self.is_integer else float(text)
        if not self.minimum <= number <= self.maximum or number == math.inf:
            raise ClusterError(f"{self.name} is {text!r}, expected {self.expected}")
        return number


def integer(setting: NumericSetting, environment: Mapping[str, str], default: int) -> int:
    """Return the integer or the default. Raises as `NumericSetting.of`."""
    number = setting.of(environment)
    return default if number is None else int(number)


def real(setting: NumericSetting, environment: Mapping[str, str], default: float) -> float:
    """Return the number or the default. Raises as `NumericSetting.of`."""
    number = setting.of(environment)
    return default if number is None else number


OPEN_RUNS = NumericSetting(
    name="CEREBRO_OPEN_RUNS",
    expected="a number of at least 1 (controller.openRuns of the chart), the number of runs that share the cluster; "
    "with 1 they run in sequence",
    is_integer=True,
    minimum=1,
)
MAX_WORKERS = NumericSetting(
    name="CEREBRO_MOST_WORKERS",
    expected="the number of workers that the controller may ask for by itself (autoscaler.mostWorkers of the chart), "
    "or 0",
    is_integer=True,
    minimum=0,
    maximum=1000,
)
LEAST_WORKERS = NumericSetting(
    name="CEREBRO_LEAST_WORKERS",
    expected="the number of workers that stay while there is no run (autoscaler.minWorkers of the chart), from 0",
    is_integer=True,
    minimum=0,
    maximum=1000,
)
INSTALLED_WORKERS = NumericSetting(
    name="CEREBRO_INSTALLED_WORKERS",
    expected="the number of workers of the chart's values (worker.replicas), from 1; or 0 for none",
    is_integer=True,
    minimum=0,
    maximum=1000,
)
IDLE_S = NumericSetting(
    name="CEREBRO_IDLE_S",
    expected="the seconds without a run after which the cluster scales to zero (autoscaler.idleS of the chart), from "
    "60",
    minimum=60,
)
LEASE_S = NumericSetting(
    name="CEREBRO_LEASE_S",
    expected=f"the seconds after which a silent worker counts as lost, from 0.1 to {MAX_LEASE_S:g}",
    minimum=0.1,
    maximum=MAX_LEASE_S,
)
DEVICES = NumericSetting(
    name="CEREBRO_DEVICES",
    expected="a number of devices from 1, or nothing for all",
    is_integer=True,
    minimum=1,
)
CORES = NumericSetting(
    name="CEREBRO_CORES",
    expected="a number of processor cores from 1, or nothing for all",
    is_integer=True,
    minimum=1,
)
WEIGHT = NumericSetting(
    name="CEREBRO_WEIGHT",
    expected="the worker's share of the data beside those of others, a number above 0",
    minimum=math.ulp(0.0),
)
GRACE_S = NumericSetting(
    name="CEREBRO_GRACE_S",
    expected="the seconds that a running task has to give way when its worker is asked to end, from 0",
    minimum=0,
)
SAVEPOINT_S = NumericSetting(
    name="CEREBRO_SAVEPOINT_S",
    expected="the seconds between two savepoints, or 0 for none",
    minimum=0,
)
TASK_LOG_MIB = NumericSetting(
    name="CEREBRO_TASK_LOG_MIB",
    expected="the MiB that the log of an attempt may have, from 1, or 0 for any number",
    is_integer=True,
    minimum=0,
)
GANG_PORT = NumericSetting(
    name="CEREBRO_GANG_PORT",
    expected="the port on which a worker listens for others that train with it, or 0 for any that is free",
    is_integer=True,
    minimum=0,
    maximum=65535,
)
THREADS = NumericSetting(
    name="CEREBRO_THREADS",
    expected="the number of requests that kvs_api serves at once, from 1",
    is_integer=True,
    minimum=1,
)

FROZEN_CACHE_MIB = NumericSetting(
    name="CEREBRO_FROZEN_CACHE_MIB",
    expected="the MiB that stored outputs of frozen layers may take on a worker, or 0 for none",
    is_integer=True,
    minimum=0,
)
_FROZEN_CACHE_MIB = 32 << 10

_AUTOSCALER = "CEREBRO_AUTOSCALER"
_DEVICE_MEMORY = "CEREBRO_DEVICE_MEMORY"
_MAX_MEMORY = "CEREBRO_MOST_MEMORY"
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(KiB|MiB|GiB)?")

SETTINGS = (
    OPEN_RUNS, MAX_WORKERS, LEAST_WORKERS, INSTALLED_WORKERS, IDLE_S, LEASE_S, DEVICES, CORES,
    WEIGHT, GRACE_S, SAVEPOINT_S, TASK_LOG_MIB, GANG_PORT, THREADS, FROZEN_CACHE_MIB,
)  # fmt: skip


def check(environment: Mapping[str, str]) -> None:
    """Raise `ClusterError` if a service would refuse a value in `environment`."""
    for setting in SETTINGS:
        setting.of(environment)
    device_memory(environment)
    max_memory(environment)
    autoscaler_mode(environment)
    sandbox_settings.mode(environment)
    sandbox_settings.writable(environment)


def autoscaler_mode(environment: Mapping[str, str]) -> str:
    """Return the autoscaler's mode: ``off``, ``advise`` or ``act``.

    Raises:
        ClusterError: the mode is unknown.
    """
    mode = environment.get(_AUTOSCALER, "") or "advise"
    if mode not in ("off", "advise", "act"):
        raise ClusterError(
            f"{_AUTOSCALER} is {mode!r}, expected off, advise or act (autoscaler.mode of the chart)"
        )
    return mode


def frozen_cache_bytes(environment: Mapping[str, str]) -> int:
    """Return the maximum bytes of stored outputs of frozen layers on a worker. Default 32 GiB; 0 for none.

    Raises:
        ClusterError: the value is not a whole number from 0.
    """
    return integer(FROZEN_CACHE_MIB, environment, _FROZEN_CACHE_MIB) << 20


def device_memory(environment: Mapping[str, str]) -> int | None:
    """Return the bytes of each CPU device, set as a size such as ``1.5GiB``; `None`: all memory.

    Raises:
        ClusterError: the value is not a size.
    """
    return _size(_DEVICE_MEMORY, environment)


def max_memory(environment: Mapping[str, str]) -> int | None:
    """Return the maximum memory limit of a worker's container, in bytes; `None`: the limit never grows.

    Raises:
        ClusterError: the value is not a size.
    """
    return _size(_MAX_MEMORY, environment)


def _size(name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    found = _SIZE.fullmatch(text)
    size = round(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
    if size < 1:
        raise ClusterError(f"{name} is {text!r}, expected a size such as 512MiB or 1.5GiB, or nothing")
    return size
