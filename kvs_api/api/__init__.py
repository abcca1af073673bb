"""The HTTP interface: access, views, requests that wait for news."""
