"""Child processes with limits for untrusted input: user files, locators, search expressions."""
