"""The terminal interface: draws what ``rltrace.diff`` and ``rltrace.report`` return, and computes nothing."""
