"""HTTP servers and connections of all services."""
