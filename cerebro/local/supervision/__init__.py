"""The supervisor of a local cluster: services, their processes, ports and probes."""
