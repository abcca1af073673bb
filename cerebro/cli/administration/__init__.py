"""Commands about the cluster: start, watch, scale, health and accounts."""
