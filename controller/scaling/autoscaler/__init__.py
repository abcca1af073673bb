"""Number of workers a run needs: forecasts of its end, and advice by its goal."""
