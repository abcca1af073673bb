"""Users, roles, tokens and quotas."""
