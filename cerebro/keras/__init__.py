"""Keras models for the hopper: `KerasSubEpochSpec`, and its conversion to a `SubEpochSpec`.

Only this package imports Keras and TensorFlow, and only in processes with such a spec. The rest of the platform sees
torch modules, whose state is named tensors (`module`), and a `SubEpochSpec` that trains them (`adapter`). `backend`
selects TensorFlow or torch, and `passes` has the default training, test and prediction.
"""
