"""The tab Analysis: four figures that show which hyperparameters matter."""
