"""The HTTP interface: authentication, views, requests that wait for news."""
