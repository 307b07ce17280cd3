"""The recorded values of the finding's op: how far the two sides lie apart, and where the most.

Owns that part of the page. Measures nothing: the distances are given.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.diff.numbers.distances import Bin, Distances, Element
from rltrace.report.html.charts import bar
from rltrace.report.html.elements import Content, el
from rltrace.report.html.parts import code, commands, muted, number, row, table
from rltrace.report.values import OpValues, ValuePair

MOST_WORST, MOST_PAIRS = 12, 16


def values_part(values: OpValues | None, to_record: tuple[str, ...]) -> Content:
    """Each tensor of which something was kept; where nothing was, how to record it."""
    if values is None or not values.pairs:
        return None
    if not values.any_kept and not values.asked:
        return el(
            "details",
            el("summary", "Values were not recorded; these commands record those of this op"),
            commands(to_record),
        )
    return [el("h3", "Recorded values"), [_pair(pair) for pair in values.pairs[:MOST_PAIRS]]]


def _pair(pair: ValuePair) -> Content:
    layout = pair.layout.a or pair.layout.b
    name: list[Content] = [el("strong", pair.what), " ", code(layout) if layout else None, ": "]
    if pair.distances is None:
        return el("p", name, "equal on both sides" if pair.equal else pair.why or "not recorded")
    found = pair.distances
    return [
        el("p", name, _told(found), "."),
        _histogram(pair.what, found) if found.histogram else None,
        _worst(pair.what, found) if found.worst else None,
    ]


def _told(found: Distances) -> str:
    told = [f"{found.differing:,} of {found.elements:,} elements differ"]
    if found.largest is not None:
        told.append(f"by at most {found.largest:,} {found.unit}".rstrip())
    if found.largest_absolute is not None:
        told.append(f"|A - B| up to {found.largest_absolute:.3g}")
    if found.largest_relative is not None:
        told.append(f"relatively {found.largest_relative:.3g}")
    counts = (
        (found.zeros, "only in the sign of zero"),
        (found.nans, "NaN on one side"),
        (found.payloads, "NaN of other bits"),
        (found.infinities, "infinite on a side"),
    )
    return ", ".join([*told, *(f"{count:,} {words}" for count, words in counts if count)])


def _histogram(what: str, found: Distances) -> Content:
    most = max(each.count for each in found.histogram)
    head = ((f"distance, {found.unit}" if found.unit else "distance", None), ("elements", "number"), ("", "bar-cell"))
    rows = [
        row(code(_span(each)), number(each.count), el("td", bar(each.count, most), class_="bar-cell"))
        for each in found.histogram
    ]
    return table(head, rows, f"Distances of the elements of {what}", "histogram")


def _span(each: Bin) -> str:
    return f"{each.low:,}" if each.low == each.high else f"{each.low:,} – {each.high:,}"


def _worst(what: str, found: Distances) -> Content:
    head = (("element", None), ("A", None), ("B", None), ("A, bits", None), ("B, bits", None), ("apart", "number"))
    shown = found.worst[:MOST_WORST]
    listed = table(head, _elements(shown), f"The {len(shown):,} elements of {what} with the largest distances")
    return el("details", el("summary", f"The elements of {what} with the largest distances"), listed)


def _elements(worst: tuple[Element, ...]) -> Iterator[Content]:
    for each in worst:
        distance = muted("none") if each.distance is None else f"{each.distance:,}"
        place = f"[{', '.join(map(str, each.index))}]"
        yield row(
            code(place),
            code(each.a),
            code(each.b),
            code(each.hex_a),
            code(each.hex_b),
            el("td", distance, class_="number"),
        )
