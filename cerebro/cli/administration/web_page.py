"""``cerebro open``: sign a browser in at the web page of a cluster, by a link that works once.

`cerebro.client.connection` makes the link. It has the rights of the token in use: the local cluster's, or
``CEREBRO_TOKEN``.
"""

from __future__ import annotations

import argparse
import html
import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro.cli.text import detail

if TYPE_CHECKING:
    from cerebro.local.home import ClusterInfo


def register(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``open`` to the subcommands.

    Args:
        common: parser of the options shared by all commands on a cluster.
    """
    parser = commands.add_parser(
        "open", parents=[common], help="open the web page in a browser, signed in by a one-time link"
    )
    parser.add_argument(
        "experiment", nargs="?", metavar="EXPERIMENT", help="open the page of this experiment"
    )
    parser.add_argument(
        "--print", dest="is_printed", action="store_true", help="only print the link, for another browser"
    )
    parser.set_defaults(run=_open)


def _open(options: argparse.Namespace) -> int:
    from cerebro.client.connection import connect
    from cerebro.client.files import cache_folder

    connection = connect(home=options.home, start=False)
    path = ""
    if options.experiment:
        path = f"/experiments/{connection.kvs.experiment(options.experiment).name}"
    link = connection.sign_in_link(path)
    if not options.is_printed and open_in_browser(link, cache_folder(os.environ), os.environ):
        print("A browser opens the web page. If it does not, open this link, once, within 10 minutes:")
    else:
        print("This link signs a browser in, once, within 10 minutes:")
    print(link)
    return 0


def sign_in_lines(info: ClusterInfo) -> list[str]:
    """Format a new sign-in link of a local cluster or, while its store does not answer, how to make one."""
    from cerebro.cli.administration.cluster_status import client
    from cerebro.client.connection import sign_in_link
    from cerebro.errors import CerebroError

    try:
        link = sign_in_link(client(info), info.dispatcher)
    except CerebroError:
        return [detail("sign in", "with `cerebro open`")]
    return [
        detail("sign in", link),
        detail("", "once, within 10 minutes; `cerebro open` makes another link"),
    ]


def open_in_browser(link: str, folder: Path, environment: Mapping[str, str]) -> bool:
    """Open a sign-in link in a graphical browser.

    The browser gets a private file that leads to the link, because other users can read command lines.

    Args:
        folder: folder for the file.

    Returns:
        False if there is no browser, or it did not start.
    """
    if not has_browser(environment):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "open.html"
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as opened:
        opened.write(
            f'<meta http-equiv="refresh" content="0; url={html.escape(link)}"><title>Cerebro</title>\n'
        )
    return webbrowser.open(file.as_uri())


def has_browser(environment: Mapping[str, str]) -> bool:
    """True if a graphical browser can start here. On Linux this needs a display, or a browser named by ``BROWSER``."""
    is_linux = sys.platform.startswith("linux")
    if is_linux and not any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True
