"""Child processes as the agent sees them.

`children` keeps the pool, `process` starts and ends one child, `group` and `group_channel` combine ranks of one
attempt. The code that runs inside a child is in `cerebro.worker.child`.
"""
