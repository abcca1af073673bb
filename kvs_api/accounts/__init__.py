"""Access tokens, quotas and the audit log."""
