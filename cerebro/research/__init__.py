"""The scheduler's research: what compares, draws and judges schedules. Nothing that runs live imports it."""
