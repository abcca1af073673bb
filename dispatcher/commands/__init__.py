"""Commands of users: check them, append their events to the experiment's log, and confirm deletions."""
