"""Number of workers a run needs: forecasts of its end, advice by its goal, and scale to zero.

`autoscaler` times the forecasts, `outlook` describes the run, `forecast` simulates it in the planner's child process,
`policy` chooses a number. `use` and `scale_to_zero` scale to zero.
"""
