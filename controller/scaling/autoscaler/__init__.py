"""How many workers a run needs: forecasts of its end, and what follows from them and the run's goal."""
