"""Arguments of a notebook user's calls, checked and turned into requests; `cerebro.client.session` sends them."""
