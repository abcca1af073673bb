"""Technical basis of all processes: logs, health, HTTP, the store client, volumes, resource usage, process isolation.

Services, workers and the client import it. It knows the records of `cerebro.contract`, but makes no decisions about
experiments.
"""
