"""Random programs in which one op is called on another tensor, held against what they computed.

python benchmarks/operands.py [--programs 1000] [--from 0]

A program makes tensors, views of them, several results of one op, writes in place and memory of NumPy, and calls one op
on one of two tensors of a shape. Both are recorded and compared. Where other values were computed the verdict must be
``diverged``, by no cause that has equal inputs; where not, it must be equal. Prints Markdown, and each fault.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from measure import table

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / folder) for folder in ("support", "diff")]

from test_operands import compared_seed, fault  # noqa: E402  after the path is set


def main() -> int:
    """Ends with 1 where a comparison is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1_000)
    parser.add_argument("--from", type=int, default=0, dest="first")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.programs):
        with tempfile.TemporaryDirectory() as folder:
            found, is_equal = compared_seed(seed, Path(folder))
        if found is None:
            continue
        wrong = fault(found, is_equal)
        value = found.first_value
        counts["wrong" if wrong else "equal" if value is None else value.cause.value] += 1
        if wrong:
            print(f"program {seed}: {wrong}")
    print("\n" + table(["said", "programs"], [[said, f"{count:,}"] for said, count in counts.most_common()]))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
