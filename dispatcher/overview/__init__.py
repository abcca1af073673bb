"""The first tab of an experiment: best model, failures, running tasks, throughput. Also the report of a run.

`view` computes the tab, `page` has its route, `report` the download.
"""
