"""Reads an experiment file, in a process of its own: ``python -P -m dispatcher.start.file_process``.

The file is the user's, and may take all time and memory to read. The client's code reads it; no other module of the
page imports the client's reader.
"""

from __future__ import annotations

from dispatcher.sandbox.bounded_processes import bound

MEMORY_BYTES = 192 << 20
CPU_S = 10


def main() -> None:
    """Answer one question of `cerebro.client.experiment_file.asked`."""
    bound(memory_bytes=MEMORY_BYTES, cpu_s=CPU_S)
    from cerebro.client.experiment_file import asked

    asked.main()


if __name__ == "__main__":
    main()
