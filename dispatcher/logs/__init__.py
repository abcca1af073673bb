"""What attempts printed: reading it, finding lines in it."""
