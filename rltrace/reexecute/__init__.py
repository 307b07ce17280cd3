"""One op alone: called again on the inputs that it had, as often as wanted.

Owns the way from a recorded row (``recorded``) or a call that is about to happen (``live``) to a ``Case``, the running
of a case (``rerun``, which needs torch and NumPy only), and the folder in which a case leaves the house (``folder``).
Who asks why, and what follows, is for others to say.
"""
