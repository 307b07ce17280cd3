"""Kernel evidence: its entries, names of GPU kernels, launches seen by a profiler, reports of libraries."""
