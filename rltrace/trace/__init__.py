"""The trace on disk. No torch.

Arrows run from ``tools`` to ``read`` and ``write``, from there to ``kernels``, and from all to ``format``.
"""
