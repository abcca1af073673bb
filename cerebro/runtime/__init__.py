"""Shared by all processes: logs, health, HTTP, store client, volumes, usage."""
