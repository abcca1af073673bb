"""The tab Curves: learning curves of the best or selected models, updated while they train.

`view` selects and downsamples the curves, `figure` draws them for the read API, `page` renders the tab.
"""
