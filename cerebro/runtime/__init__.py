"""What every process needs to run: logs, health, HTTP, the client of the store, volumes, usage."""
