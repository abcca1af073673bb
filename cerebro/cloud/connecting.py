"""How to reach a cluster that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from cerebro.cloud.names import MONITORING, MONITORING_NAMESPACE, NAMESPACE, PLATFORM
from cerebro.cloud.site import Site


def connection_lines(site: Site) -> Iterator[str]:
    """What to type, and the addresses of load balancers if the platform has any."""
    forward = f"kubectl -n {NAMESPACE} port-forward service/{PLATFORM}"
    secret = f"kubectl -n {NAMESPACE} get secret {PLATFORM}-auth -o jsonpath='{{.data.token}}' | base64 -d"
    yield f"  kubectl and helm   export KUBECONFIG={site.kubeconfig}"
    yield f"  token              {secret}"
    yield f"  web page           {forward}-dispatcher 7080:80     then http://localhost:7080"
    yield f"  JupyterLab         {forward}-notebook 8888:80       then http://localhost:8888"
    for name, host in _addresses(site):
        yield f"  from outside       http://{host} ({name})"
    if site.file.install.monitoring:
        grafana = f"kubectl -n {MONITORING_NAMESPACE} port-forward service/{MONITORING}-grafana 3000:80"
        yield f"  Grafana            {grafana}     then http://localhost:3000"
    yield "It costs money while it runs: `cerebro cluster pause` ends the nodes, `cerebro cluster delete` everything."


def _addresses(site: Site) -> Iterator[tuple[str, str]]:
    asked = ("--kubeconfig", str(site.kubeconfig), "--request-timeout=15s")
    answer = site.runner.look("kubectl", *asked, "-n", NAMESPACE, "get", "services,ingresses", "-o", "json")
    if answer.status != 0:
        return
    for item in json.loads(answer.output).get("items", []):
        for entry in item.get("status", {}).get("loadBalancer", {}).get("ingress") or ():
            yield item["metadata"]["name"], entry.get("hostname") or entry.get("ip", "")
