"""The trace format: schema, journal, records, arrays, hashes. Neither reads nor writes a trace."""
