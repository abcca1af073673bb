"""The dispatcher: web page, read API, and entrance for clients outside the cluster.

One folder per page or tab: `view.py` computes its data from an experiment's read model (pure), `page.py` has the
routes, `figure.py` draws. `pages.live_pages.TABS` lists the tabs. `app` assembles pages, `services` lists the objects
they share. The process has only caches; kvs_api ("the store") has all data, and mounted volumes are read-only. It
neither schedules nor changes state by itself: user commands become events in the store.
"""
