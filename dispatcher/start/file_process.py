"""Reads an experiment file, in a process of its own: ``python -P -m dispatcher.start.file_process``.

What is read is the user's, and may be written to take all time and memory. Who knows these files is the client, which
is started by name: the page itself has nothing of it.
"""

from __future__ import annotations

import importlib

from dispatcher.sandbox.bounded_processes import bound

MEMORY_BYTES = 192 << 20
CPU_S = 10


def main() -> None:
    """Answer one question of `cerebro.client.experiment_file.asked`."""
    bound(memory_bytes=MEMORY_BYTES, cpu_s=CPU_S)
    importlib.import_module("cerebro.client.experiment_file.asked").main()


if __name__ == "__main__":
    main()
