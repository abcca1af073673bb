"""Simulated searches: successive halving, Hyperband and others on assumed curves."""
