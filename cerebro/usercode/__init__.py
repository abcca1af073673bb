"""User code: checked, fingerprinted, packed on its way to the cluster, and restored where it runs."""
