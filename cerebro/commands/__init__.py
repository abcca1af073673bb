"""Commands of users: rules, checks and the events they write. Pure.

Web page, notebook and command line share this package. `rules` decides which commands are allowed now and explains
refusals. `selection` finds the run and model a command names. `command` turns a command into events, and
`training_config` does so for commands that add or change models. `values` parses typed hyperparameters. `planning`
computes the plan of a requested run.
"""
