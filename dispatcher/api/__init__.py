"""The read API, and the part of the store's API that is handed on."""
