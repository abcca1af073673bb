"""The page Cluster: workers, queue of runs, volumes, incidents and the audit log. Read-only.

`snapshot` reads the store, `disks` measures volumes in the background, `summary` extracts the relevant data of each
experiment, `view` and `volumes` build the page.
"""
