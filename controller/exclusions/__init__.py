"""Reasons to give a worker no task: broken or slow machines, lack of memory."""
