"""What a user may ask for, by which rules, and the events that it is: for page, notebook and command line alike.

`rules` says what is allowed now and why not, `chosen` which run and model are meant, `command` which events a command
is, `terms` all that stands against new and changed models, `values` how hyper-parameters are typed, and `planning` what
a run that is asked for will do. All of it is pure.
"""
