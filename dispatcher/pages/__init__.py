"""What all pages share: rendering, addresses, answers to polls, formats, errors, style and scripts."""
