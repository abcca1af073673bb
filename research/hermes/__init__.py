"""Hermes in virtual time, and better policies; see docs/hermes.md.

Son et al., "A GPU Scheduling Framework to Accelerate Hyper-Parameter Optimization in Deep Learning Clusters",
Electronics 2021, 10(3), 350.
"""
