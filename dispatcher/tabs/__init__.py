"""Frame of an experiment's tabs: header, actions, and rows that several tabs show.

`tabs` answers requests, `header` computes the header; `models`, `runs` and `workers` compute shared rows.
"""
