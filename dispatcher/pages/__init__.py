"""Parts that all pages share: layout, addresses, cached responses, formats, error pages, style and scripts.

Nothing here knows the data of one feature, except the runs that an error page shows (`problems`).
"""
