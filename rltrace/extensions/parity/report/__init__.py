"""Reports of parity: text and JSON. Never prints."""
