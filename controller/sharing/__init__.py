"""How open runs share the devices of a cluster."""
