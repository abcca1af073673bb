"""Writes the data folder that `test_old_folder.py` opens: `python tests/compat/write_folder.py PLACE`.

Run with the version whose folder is to be kept; README.md here tells how. Uses nothing of Cerebro but its command and
what `user_script.py` uses, so that it can write the folder of a later version as well.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROWS = {"train": 40, "valid": 12, "test": 12, "predict": 6}
PATIENCE_S = 300.0


def write_data(folder: Path) -> None:
    """Tables of whole numbers, whose class a perceptron can learn."""
    folder.mkdir(parents=True)
    for number, (split, rows) in enumerate(ROWS.items()):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "a", "b", "c", "d", "label"])
            for row in range(rows):
                values = [(row * step + 3 * number) % 9 - 4 for step in (1, 2, 4, 5)]
                label = max(range(3), key=lambda kind: values[kind] - values[kind + 1])
                writer.writerow([100 * number + row, *values, label])


def processes_of(home: Path) -> list[psutil.Process]:
    """All that the cluster started, and its supervisor."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CEREBRO_SERVICE_OF") == str(home) or str(home) in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_all(home: Path) -> None:
    """As when the machine loses its power."""
    victims = processes_of(home)
    for process in victims:
        process.kill()
    psutil.wait_procs(victims, timeout=30)
    assert not processes_of(home)


def main(place: Path) -> None:
    home = place / "home"
    write_data(place / "data")
    uploaded = place / "uploaded"
    uploaded.mkdir()
    (uploaded / "scaling.py").write_text("FACTOR = 0.5\n")
    script = Path(shutil.copy(HERE / "user_script.py", place))
    environment = {**os.environ, "CEREBRO_HOME": str(home), "CEREBRO_NODE": "machine", "USER": "somebody"}
    environment = {**environment, "LOGNAME": "somebody"}  # whom `getpass` asks for first

    def user(part: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(place), part], env=environment, cwd=place)

    command = [
        sys.executable,
        str(Path(sys.executable).with_name("cerebro")),
        "up",
        "--workers",
        "2",
        "--no-tensorboard",
    ]
    subprocess.run(command, env=environment, cwd=place, check=True)
    try:
        if user("finished").wait():
            raise SystemExit("the first part failed")
        second = user("in-flight")
        deadline = time.monotonic() + PATIENCE_S
        while not all((place / name).exists() for name in ("at-a-2", "at-b-2")):
            if second.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the run did not come to where it is to be interrupted")
            time.sleep(0.1)
        second.kill()
        second.wait()
    finally:
        kill_all(home)
        for flag in place.glob("hold-*"):
            flag.unlink()
    with tarfile.open(HERE / "folder-0.1.0.tar.xz", "w:xz", preset=9) as archive:
        for name in ("home", "data"):
            archive.add(place / name, name, filter=_anonymous)
    shutil.copy(place / "expected.json", HERE / "folder-0.1.0.json")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isfile() or member.isdir()):
        return None  # sockets
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
