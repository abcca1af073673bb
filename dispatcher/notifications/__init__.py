"""The page Notifications: targets of messages about runs, with their results."""
