"""Files that the controller removes, copies or measures on volumes."""
