"""Who may do what: sign-in, sessions, forms, the headers of every answer."""
