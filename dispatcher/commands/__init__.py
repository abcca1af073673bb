"""Commands of users: check them, append their events to the experiment's log, and confirm deletions.

`page.execute` appends the events of all forms and buttons except those on the page Start. The controller reads the
events and acts.
"""
