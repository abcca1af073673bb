"""Local cluster: all services as processes on one machine, under a supervisor.

`cluster` starts, joins and stops it; `supervisor` runs it; `services` lists its processes; `home` is its
folder. On Kubernetes, pods and volumes replace this package; the services are the same.

The package imports nothing here. The supervisor stays in memory, so it imports neither pydantic nor an HTTP
library.
"""
