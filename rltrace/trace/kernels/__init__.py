"""Kernel evidence: its entries, names of GPU kernels, launches that a profiler saw, reports of libraries."""
