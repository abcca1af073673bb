"""Processes with restricted file access, and processes that end with their parent.

Wrappers of Linux system calls (Landlock, seccomp, prctl, fork). They choose no folders and no commands: callers do.
"""
