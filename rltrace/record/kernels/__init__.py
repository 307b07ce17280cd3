"""What ran for an op: by the operator's name and the process's settings (``by_name``), by what the profiler saw
(``profiled``). What libraries say of themselves is asked for elsewhere (``rltrace.reexecute.asking``).
"""

from rltrace.record.kernels.by_name import Kernels

__all__ = ["Kernels"]
