"""The tab Schedule: Gantt chart, makespan against its lower bound, and the tasks with their attempts.

`tasks` lists tasks for several tabs. `window` selects a time range; older ranges of a long run are read from the
log.
"""
