"""What users do to experiments."""
