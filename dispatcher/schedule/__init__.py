"""Who trained what when, and how close that is to the best."""
