"""Entries by identity, gone with their objects."""

import gc

from rltrace.recorder.base.weak_id_dict import WeakIdDict


class Same:
    """Equal to everything, and without a hash."""

    def __eq__(self, other: object) -> bool:
        return True


def test_equal_objects_have_entries_of_their_own() -> None:
    """Neither equality nor a hash is asked for."""
    table: WeakIdDict[Same, int] = WeakIdDict()
    first, second, third = Same(), Same(), Same()
    table[first], table[second] = 1, 2
    table[first] = 3
    assert (table.get(first), table.get(second), table.get(third)) == (3, 2, None)
    assert third not in table
    assert [id(key) for key in table] == [id(first), id(second)]


def test_an_entry_dies_with_its_object() -> None:
    """Also where the entry had been written twice."""
    table: WeakIdDict[Same, int] = WeakIdDict()
    kept, lost = Same(), Same()
    table[kept], table[lost] = 1, 2
    table[lost] = 3
    del lost
    gc.collect()
    assert len(table) == 1
    assert table.get(kept) == 1
