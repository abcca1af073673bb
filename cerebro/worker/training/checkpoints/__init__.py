"""Checkpoints and savepoints: written, verified and read, alone or jointly by ranks.

`checkpoint` is the entry: `save`, `check`, `read`, `load`. `frozen` stores frozen weights once in a *base*, the
frozen-weights file of a model. Removal of old files is in `cerebro.worker.upkeep.checkpoint_removal`.
"""
