"""The client of notebooks, scripts and the command line.

`experiment.py` has the public class `Experiment`; `commands.py`, `evaluation.py` and `models/` add commands, tests,
predictions and registered models. `session.py` sends requests and follows runs over a `connection.py`. `results/`,
`progress/` and `reporting/` show results, `search/` and `requests/` check arguments, `experiment_file/` reads YAML
files, `dry_run/` and `replay.py` run user code in this process. No service imports this folder, except the web page,
which reads experiment files and writes reports.
"""
