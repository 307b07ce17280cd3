"""Basics of the recorder: options, intern tables, threads, process names, patches, the dispatch mode."""
