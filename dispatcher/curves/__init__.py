"""The tab Curves: learning curves of the best or selected models, updated while they train."""
