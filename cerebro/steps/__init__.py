"""The loop of `StepSpec`: the user defines steps, the platform trains.

`spec` is the template and imports no torch. `loop` trains and evaluates with it, `options` checks its settings,
`averages` combines the metrics of batches, `ema` averages weights. Only processes that run user code import the others.
"""
