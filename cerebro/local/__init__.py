"""The local cluster: every service of Cerebro as a process on one machine, watched by a supervisor.

`cluster` starts, joins and stops it; `supervisor` runs it; `services` lists what runs; `home` is the folder
all of it lives in. On Kubernetes none of this package runs: pods and volumes take its place, the services are
the same.

The package imports nothing here, and the supervisor imports neither pydantic nor an HTTP library: it stays in
memory for as long as the cluster does.
"""
