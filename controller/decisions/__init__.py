"""The core of one experiment: state and cluster snapshot in, steps out.

It does no I/O and reads no clock, so it decides the same live, after a crash and in a simulation.
"""
