"""Searches over hyper-parameters: procedures, stop rules and samplers. Pure: no clock, no files, no store.

A *procedure* decides which models are trained how far; a *sampler* says which values the next model has. They are
chosen apart. What happened is told to them as *reports*, derived from an experiment's log in its order; they answer
with *orders*. Whoever tells the same reports again gets the same orders.
"""
