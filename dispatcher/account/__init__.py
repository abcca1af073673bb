"""Who one is, and one's tokens."""
