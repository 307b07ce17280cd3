"""What the rest of the recorder builds on: options, intern tables, threads, names, patches of imports."""
