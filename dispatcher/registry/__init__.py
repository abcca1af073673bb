"""Registered models: versions and aliases."""
