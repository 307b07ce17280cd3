"""Runs in every Python process that a test starts: the garbage collector goes by less often, and not at the very end.

Importing torch, and the compiler that its optimizers load, makes more than a million objects. Going through them again
and again, and once more when the interpreter ends, is a third of the processor time of a program of a few ops.

Not in the process of the tests themselves, where most recordings are made, nor in the programs that
``tests/e2e/test_observer.py`` compares with themselves unrecorded, nor where it is tested how processes begin and end
(the fixture ``children_as_ever``): there the collector goes by as ever.
"""

import atexit
import gc

gc.set_threshold(50_000, 10, 10)
atexit.register(gc.freeze)  # the first to be registered is the last to run
