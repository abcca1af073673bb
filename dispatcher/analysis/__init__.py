"""The tab Analysis: four figures that show which hyper-parameters matter."""
