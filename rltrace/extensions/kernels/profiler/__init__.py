"""torch's profiler beside a recording: which kernels were launched for which row."""
