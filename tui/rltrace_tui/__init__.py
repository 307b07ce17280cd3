"""The terminal interface: draws the objects of ``rltrace.diff`` and ``rltrace.report``, computes nothing."""
