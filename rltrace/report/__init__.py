"""Reports of comparisons and of traces as text, JSON, Markdown and HTML. Never prints."""
