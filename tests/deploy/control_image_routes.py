"""Request every route of the page and start an experiment file; a program for test_control_image.py.

``python control_image_routes.py FOLDER`` prints each request's method, path and status as JSON.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

from dispatcher.start import experiment_file
from tests.dispatcher.access.surface import BEARER, LOCAL, changing, routes
from tests.dispatcher.gallery import gallery, paths
from tests.waiting import HANG_S

_FILE = """\
name: from-a-file
locators:
  train: {{metadata: {table}}}
code: src
etl: {{spec: "digits:Rows(size=8)"}}
fit:
  spec: digits:Training
  space: {{lr: "loguniform(1e-4, 1e-1)", batch_size: [1, 2]}}
  search: ASHA(sampler=TPE())
  samples: 4
  techniques: [single, ddp]
  epochs: 2
  metric: loss
  mode: min
"""


def main() -> None:
    """Send all requests and print the results."""
    folder = Path(sys.argv[1])
    experiment_file.READ_S = HANG_S  # a slow machine takes longer
    table = folder / "train.csv"
    table.write_text("id,label\na,1\nb,2\n")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("digits.py", "class Rows: pass\n")
    bench = gallery(folder / "volumes")
    client = bench.app.test_client()
    browser = bench.signed_in()
    answers: list[tuple[str, str, int]] = []
    for path in (*paths(), "/experiments/digits/logs?q=loss"):
        answers.append(("GET", path, browser.get(path).status_code))
    for path in changing(bench):
        sent = {"action": "stop_run", "run": "fit-1", "name": "digits"}
        answers.append(("POST", path, browser.post(path, sent, form="/experiments").status_code))
    for method, path, _ in routes(bench):
        if path.startswith("/api/v1"):
            continue  # the store's own API, which is forwarded
        status = client.open(path, method=method, base_url=LOCAL, headers=BEARER, buffered=True).status_code
        answers.append((method, path, status))
    browser = bench.signed_in()
    for path, action in (("/start/check", "check"), ("/start", "start")):
        fields: dict[str, object] = {
            "file": _FILE.format(table=table),
            "action": action,
            "archive": (io.BytesIO(archive.getvalue()), "code.zip"),
        }
        answer = browser.post(path, fields, form="/start")
        assert "could not" not in answer.text, answer.text
        answers.append(("POST", f"{path} with a file", answer.status_code))
    print(json.dumps(answers))  # noqa: T201 - the answer of a program


if __name__ == "__main__":
    main()
