"""The tab Analysis: four figures that show which hyperparameters matter.

`page` renders the tab with the addresses of its figures; browsers load each from the read API, which calls `figures`.
"""
