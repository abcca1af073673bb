"""Exclusions: why a worker gets no task, such as a broken machine or lack of memory.

`health` and `stragglers` judge machines, `memory_*` and `model_exclusions` judge memory and failed attempts. All are
pure, except `machines` and `memory_limits`, which act for the loop.
"""
