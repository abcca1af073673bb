"""Outputs of `cerebro.Frozen` layers: computed once per partition and shared by all models on a worker.

`layers.py` recognises inputs of the current batch and returns their outputs; `outputs.py` computes them;
`output_cache.py` stores them beside the shards.
"""
