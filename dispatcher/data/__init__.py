"""Preprocessing, and the rows that it left out."""
