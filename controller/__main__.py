"""Start the controller: wiring only."""

from __future__ import annotations

import logging
import os
import signal
import sys

from cerebro.errors import CerebroError
from cerebro.kvs import KvsClient
from controller.advisor import ChildHelper
from controller.loop import Controller
from controller.projection import Projection
from controller.settings import Settings


def main() -> None:
    """Decide until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = Settings.from_environment(os.environ)
    except CerebroError as error:
        sys.exit(f"controller: {error}")
    kvs = KvsClient(settings.server, settings.token, patience_s=10.0)
    projection = Projection(kvs, settings.volumes)
    controller = Controller(kvs, settings, projection, ChildHelper())
    # Nothing needs saving: what this process knows is a fold of the log.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    projection.start()
    controller.run()


if __name__ == "__main__":
    main()
