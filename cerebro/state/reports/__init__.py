"""Reports computed from a state: schedule, time left, reasons to wait."""
