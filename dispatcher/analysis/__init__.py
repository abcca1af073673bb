"""Which hyper-parameters matter."""
