"""Routes of kvs_api with their requests and answers."""
