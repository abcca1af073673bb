"""The tab Analysis: figures that show which hyperparameters matter. Also the figures of the tab Search.

`page` renders the tab with the addresses of its figures; browsers load each from the read API, which calls `figures`.
"""
