"""The tab Schedule: Gantt chart, makespan against its lower bound, and the tasks with their attempts.

`view` computes the schedule's quality, `figure` the chart. `tasks` lists tasks for several tabs, with rows from
`task_rows`. `window` selects a time range; older ranges of a long run are read from the log. Nothing here schedules:
the controller does.
"""
