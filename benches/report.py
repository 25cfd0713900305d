"""Measure every comparison, each pair in turns within one run: `python -m benches.report`.

Prints one table, draws it, and exits with 1 if a ratio is below what is asked for.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from benches.rows import ROWS, Row

SECONDS = 2.0


@dataclass(frozen=True)
class Result:
    """Median seconds of one comparison."""

    row: Row
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """How many times faster."""
        return self.theirs / self.ours

    @property
    def is_met(self) -> bool:
        """Whether that is what is asked for."""
        if self.row.allowance is not None:
            return self.ours - self.theirs <= self.row.allowance
        return self.row.required is None or self.ratio >= self.row.required

    @property
    def required(self) -> str:
        """What is asked for, or nothing."""
        if self.row.allowance is not None:
            return f"+{self.row.allowance * 1e3:.0f} ms"
        return "" if self.row.required is None else f"{self.row.required:g}"


def line(result: Result) -> str:
    """One line of the table."""
    row = result.row
    met = ("yes" if result.is_met else "NO") if result.required else ""
    return (
        f"| {row.name:<32} | {row.against:<22} | {result.ours * 1e6:>10,.1f} | "
        f"{result.theirs * 1e6:>12,.1f} | {result.ratio:>8,.2f} | {result.required:>8} | {met:>3} |"
    )


def draw(results: list[Result], path: Path) -> None:
    """The ratios as bars, with what is asked for as ticks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.4 * len(results) + 1), layout="constrained")
    places = range(len(results))
    colours = ["tab:blue" if result.is_met else "tab:red" for result in results]
    axes.barh(places, [result.ratio for result in results], color=colours)
    for place, result in zip(places, results, strict=True):
        if result.row.required is not None:
            axes.plot([result.row.required] * 2, [place - 0.4, place + 0.4], color="black")
    names = [f"{result.row.name} / {result.row.against}" for result in results]
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("times as fast (black: required)")
    figure.savefig(path, dpi=120)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with TEXT in their names")
    parser.add_argument("--chart", type=Path, default=Path("benches.png"), metavar="PNG")
    options = parser.parse_args()
    columns = ("what", "against", "us", "their us", "ratio", "required", "met")
    widths = (32, 22, 10, 12, 8, 8, 3)
    print("|", " | ".join(f"{c:<{w}}" for c, w in zip(columns, widths, strict=True)), "|")
    print("|", " | ".join("-" * width for width in widths), "|")
    results = []
    for row in ROWS:
        if options.only not in f"{row.name} / {row.against}" or not row.is_available():
            continue
        with row.prepared(options.quick) as pair:
            result = Result(row, *pair.measure(0.05 if options.quick else SECONDS))
        print(line(result), flush=True)
        results.append(result)
    draw(results, options.chart)
    if options.quick:
        return 0  # small sizes say nothing about speed
    return int(not all(result.is_met for result in results))


if __name__ == "__main__":
    sys.exit(main())
