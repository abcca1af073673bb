"""Child processes as the agent sees them: started, spoken to, ended."""
