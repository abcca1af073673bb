"""Child process that reads an experiment file: ``python -P -m dispatcher.start.file_process``.

`experiment_file.FileReader` starts it. A user's file may need any time and memory, so both are limited. Only this
module imports the client's reader, `cerebro.client.experiment_file`.
"""

from __future__ import annotations

from dispatcher.sandbox.bounded_processes import limit_process

MEMORY_BYTES = 192 << 20
CPU_S = 10


def main() -> None:
    """Answer one request of `cerebro.client.experiment_file.submission`."""
    limit_process(memory_bytes=MEMORY_BYTES, cpu_s=CPU_S)
    from cerebro.client.experiment_file import submission

    submission.main()


if __name__ == "__main__":
    main()
