"""Causes of failures on a worker: faulty devices, hangs, failed ranks, failure rules.

The agent calls these modules to classify a failed attempt and to check its machine; the child uses `device_errors`.
They only find causes: retries, exclusions and quarantine are the controller's decisions.
"""
