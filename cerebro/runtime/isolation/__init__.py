"""Restricted and forked processes."""
