"""Puts a `Site` together: the file read, the chart found, hands made. The only place with a clock and a process's
environment."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from cerebro.cloud.aws import Aws, Session, open_session
from cerebro.cloud.journal import Journal
from cerebro.cloud.reading import read
from cerebro.cloud.runner import Runner
from cerebro.cloud.site import Patience, Site
from cerebro.errors import ProvisionError

_CHART = Path("deploy") / "helm" / "cerebro"


def open_site(
    path: Path,
    home: Path,
    *,
    is_dry: bool,
    show: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    session: Session | None = None,
) -> Site:
    """The site of a cluster file.

    Args:
        path: of the cluster file.
        home: generated files and the log go to ``clusters/REGION.NAME`` below it.
        is_dry: nothing is changed, on AWS or here.
        show: takes each line for the user.
        environment: of the executables; this process's if not given.
        patience: how AWS is waited for.
        session: credentials; this process's if not given.

    Raises:
        ClusterFileError: the file has mistakes.
    """
    file = read(path)
    folder = home / "clusters" / f"{file.region}.{file.name}"
    journal = Journal(None if is_dry else folder / "cluster.log", lambda: datetime.now(UTC))
    given = dict(os.environ if environment is None else environment)
    runner = Runner(environment=given, journal=journal, show=show, is_dry=is_dry)
    aws = Aws(
        session or open_session(file.region), region=file.region, journal=journal, show=show, is_dry=is_dry
    )
    return Site(
        file=file,
        aws=aws,
        runner=runner,
        folder=folder,
        show=show,
        is_dry=is_dry,
        patience=patience or Patience(),
    )


def find_chart(site: Site, path: Path) -> tuple[Path, str | None]:
    """The platform's chart, and why it cannot be used, if so.

    Args:
        site: whose file may name it.
        path: of the cluster file, which a relative path begins at.
    """
    given = site.file.install.chart.path
    checkout = Path(__file__).resolve().parents[2] / _CHART
    chart = checkout if given is None else path.parent / given
    if (chart / "Chart.yaml").is_file() or (chart.is_file() and chart.suffix == ".tgz"):
        return chart, None
    if given is not None:
        return chart, f"{chart} is no chart: neither a folder with Chart.yaml nor a .tgz archive"
    return chart, (
        f"there is no chart at {chart}, because Cerebro does not run from a checkout: clone the repository and set "
        f"install.chart.path to its {_CHART}"
    )


@contextmanager
def alone(site: Site) -> Iterator[None]:
    """Keeps a second command for the same cluster out while one is at work on this machine.

    Raises:
        ProvisionError: one is.
    """
    if site.is_dry:
        yield
        return
    site.folder.mkdir(parents=True, exist_ok=True)
    with (site.folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            raise ProvisionError(
                f"another `cerebro cluster` command is at work on {site.file.name}: wait for it, its log is "
                f"{site.folder / 'cluster.log'}"
            ) from taken
        yield
