"""Keras models through the same hopper: `KerasSubEpochSpec`, and what makes of it the `SubEpochSpec` that is trained.

The only room that imports Keras and TensorFlow, and only in processes that have such a spec. The rest of the platform
sees torch's modules, whose state is named tensors (`module`), and a spec that takes them (`hopped`).
"""
