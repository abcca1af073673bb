"""Commands about one experiment, its models and results."""
