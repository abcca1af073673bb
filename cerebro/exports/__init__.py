"""Results in other people's trackers: projections of what an experiment's log says was committed.

What is to be there follows from the log alone (`projection`). What was sent once is not sent again, because each run of
a tracker says up to which event of the log it has everything. So an export may end anywhere, and the next one goes on.
Nothing here is needed to train, and nothing of a tracker is in an image.
"""
