"""Exclusions: why a worker gets no task, such as a broken machine or lack of memory."""
