"""Files on volumes that the controller removes, copies or measures."""
