"""Which ways are tried, and what is known of their time and memory. Pure."""
