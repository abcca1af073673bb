"""The dispatcher: web page, read API, and entrance for clients outside the cluster."""
