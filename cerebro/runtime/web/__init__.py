"""HTTP servers and connections of all services.

`serving` and `wsgi` run the web services, `health` answers probes, `on_demand` starts a server at its first connection,
and `proxies` opens outgoing connections. No routes of Cerebro are here.
"""
