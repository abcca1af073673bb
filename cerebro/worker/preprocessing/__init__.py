"""Rows of metadata become tensors: user code called row by row. Workers and a dry run in a notebook both come here."""
