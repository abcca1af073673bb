"""The dispatcher: the web page that takes code and dataset locators and lists experiments."""
