"""What a trace consists of: schema, journal, records, arrays, hashes. Neither reads nor writes a trace."""
