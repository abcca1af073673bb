"""The scheduler's research: what compares and draws schedules. Nothing that runs live imports it."""
