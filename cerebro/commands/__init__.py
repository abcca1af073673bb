"""What a user may ask for, by which rules, and the events that it is: for page, notebook and command line."""
