"""Parts that all pages share: layout, addresses, cached responses, formats, error pages, style and scripts."""
