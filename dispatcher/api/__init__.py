"""JSON API: read API of all pages, files of the volumes, forwarded routes of the store.

`routes` is the table of read routes, `views` answers them from the `view.py` of each feature. `gateway` forwards
requests to kvs_api. `files` serves volumes.
"""
