"""The pure core of one experiment: state and cluster snapshot in, steps out.

No I/O and no clock, so a decision is the same live, after a crash and in a simulation.
"""
