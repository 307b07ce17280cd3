"""Walking along another trace while a program runs: its values put in where the program comes by.

Owns what is put where (``plan``), the putting in (``inject``, ``stream``) and the account of it (``account``). The
recorder underneath is the one that records any run; the replay's trace shows what the program went on with.
"""
