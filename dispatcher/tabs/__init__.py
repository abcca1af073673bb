"""What the tabs of an experiment share: their frame, the header, and parts that several show."""
