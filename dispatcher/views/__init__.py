"""What pages and the read API show: pure functions from an experiment's state to frozen values. One each module."""
