"""Comparison of the splits and partitions of a data set, from the statistics that workers write."""
