"""The tab History: an experiment's runs, and the commands of users with author and outcome. Read-only."""
