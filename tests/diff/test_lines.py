"""Which site of B is which of A: by what its lines say, and by what was learned; never by a guess."""

from collections.abc import Sequence

from programs import Do, Record

from rltrace.diff.base.view import SiteNames
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace

Frame = tuple[str, int, str, str]


def frame(source: str, function: str = "f", file: str = "train.py") -> Frame:
    return file, 1, function, source


def process(record: Record, *stacks: Sequence[Frame]) -> ProcessTrace:
    """One that ran an op at each of these sites, in order: the first is its site 1."""
    ran = [
        Do("aten.sin.default", file=first[0], line=first[1], function=first[2], source=first[3], stack=tuple(rest))
        for first, *rest in stacks
    ]
    return open_trace(record(ran).path).processes[0]


def known(names: SiteNames, a: ProcessTrace) -> list[int | None]:
    """Which site of A each of B's is taken for; None: none, or it is its own."""
    return [a.tables["sites"].ids.get(int(key)) for key in names.keys[1:]]


def test_what_functions_and_files_are_called_does_not_matter(record: Record) -> None:
    """A frame somewhere in the stack stands in another file, or in a renamed function, or both."""
    a = process(record, [frame("x = y"), frame("go()")], [frame("z = y"), frame("go()")])
    b = process(record, [frame("z = y", "g"), frame("go()")], [frame("x = y", "g", "other.py"), frame("go()", "h")])
    names = SiteNames(a, b)
    assert names.any and known(names, a) == [2, 1]


def test_sites_that_say_the_same_are_matched_by_their_functions_or_not_at_all(record: Record) -> None:
    """Two functions with one text each, in a renamed file: known; both renamed as well: which is which is unknown."""
    a = process(record, [frame("x = y", "f")], [frame("x = y", "g")])
    moved = process(record, [frame("x = y", "g", "other.py")], [frame("x = y", "f", "other.py")])
    assert known(SiteNames(a, moved), a) == [2, 1]
    renamed = process(record, [frame("x = y", "p")], [frame("x = y", "q")])
    assert not SiteNames(a, renamed).any


def test_a_line_without_text_keeps_its_place(record: Record) -> None:
    """Code without source says nothing: its lines are not all one."""
    assert not SiteNames(process(record, [("a.py", 1, "f", " ")]), process(record, [("b.py", 1, "f", " ")])).any


def test_an_edited_line_is_learned_with_every_stack_it_is_in(record: Record) -> None:
    """One proof is enough; what was settled once stays, and stacks that differ in two lines prove nothing."""
    callers = [frame("go()")], [frame("go()"), frame("go()")]
    a = process(record, *([frame("x = y"), *more] for more in callers), [frame("u = v")], [frame("n = 1")])
    b = process(record, *([frame("x = 2 * y"), *more] for more in callers), [frame("w = v")], [frame("n = 2")])
    names = SiteNames(a, b)
    assert known(names, a) == [None, None, None, None]
    assert not names.learn(3, 1)  # stacks of another depth
    assert names.learn(1, 1) and not names.learn(1, 1)
    assert known(names, a) == [1, 2, None, None]
    assert not names.learn(1, 3)  # A's line has another partner
    assert names.learn(4, 4) and known(names, a) == [1, 2, None, 4]


def test_frames_of_renamed_functions_are_known_in_other_stacks(record: Record) -> None:
    """A function that was renamed where nothing else changed has its name in stacks with an edited line as well."""
    a = process(record, [frame("x = y"), frame("go()", "old")], [frame("u = v"), frame("go()", "old")])
    b = process(record, [frame("x = y"), frame("go()", "new")], [frame("u = 2 * v"), frame("go()", "new")])
    names = SiteNames(a, b)
    assert known(names, a) == [1, None]
    assert names.learn(2, 2) and known(names, a) == [1, 2]
