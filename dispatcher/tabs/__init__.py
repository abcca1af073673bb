"""Frame of an experiment's tabs: header, actions, and rows that several tabs show."""
