"""Recording JAX: from a concrete call of a compiled function to rows.

The *hook* (``hook.py``) sees each such call, a *cut* (``loops.py``) takes a compiled function apart at its outermost
scan so that the host can drive it, a *log* (``digest_log.py``) holds digests that the loop takes itself,
``programs.py`` says what was compiled, ``cached_calls.py`` sees the calls that JAX's C++ cache serves, and the
*recording* (``recording.py``) owns rows, steps and the trace of one process. As in ``rltrace.recorder``, nothing here
changes what the program computes, prints or returns. No module of this package imports torch, and none is imported
before the program has imported JAX.
"""
