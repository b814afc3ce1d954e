"""Compare sets of runs, each of one config with several seeds.

    %(prog)s runs/cifar runs/wide

Each GROUP is a folder of runs (runs/cifar), run folders with commas between them, or a glob in
quotes ("runs/cifar/version_[0-4]"). Each is compared with the first one by Welch's t-test; Holm's
method corrects the p-values of several comparisons.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..reports.comparison import Result
from ..reports.seed_report import COLUMNS, SeedNoiseReport
from ..reports.statistics import holm, pooled_std, welch
from ..reports.tables import table
from ..runs.classes import difference
from ..runs.folder import read_config
from ..runs.plain import read_json
from ..runs.sets import REPORT
from .table import OptionParser


def find_group(spec: str, metric: str | None) -> SeedNoiseReport:
    """Return the runs of a group: those of its report, if there is one."""
    path = Path(spec) / REPORT
    known = read_json(path) if path.exists() else {}
    if not isinstance(known, dict) or not isinstance(known.get("variants", 1), int):
        raise ValueError(f"{path} is not a report of seed_noise")
    sha256, variants = known.get("config_sha256"), known.get("variants", 1)
    return replace(SeedNoiseReport.of(spec, metric, sha256, variants), name=spec.rstrip("/"))


def compare(groups: Sequence[SeedNoiseReport]) -> list[Result]:
    """Compare each group with the first one.

    Raises:
        ValueError: If groups share runs, their data differ, or nothing varies.
    """
    first, *others = groups
    for group in others:
        check_comparable(first, group)
    found = [welch(first.values, group.values) for group in others]
    corrected = holm([comparison.p for comparison in found])
    return [
        Result((first, group), comparison, float(p), len(others))
        for group, comparison, p in zip(others, found, corrected, strict=True)
    ]


def check_comparable(a: SeedNoiseReport, b: SeedNoiseReport) -> None:
    """Refuse groups that share runs, differ in their data, or do not vary."""
    if shared := {r.run for r in a.records} & {r.run for r in b.records}:
        raise ValueError(f"{a.name} and {b.name} share runs, such as {min(shared)}")
    if a.records[0].data_sha256 != b.records[0].data_sha256:
        configs = [read_config(group.records[0].run) for group in (a, b)]
        data = [config["data"].get("init_args", {}) for config in configs]
        changed = [k for k in data[0] | data[1] if data[0].get(k) != data[1].get(k)]
        settings = [f"{k} {data[0].get(k)} → {data[1].get(k)}" for k in changed]
        why = f" ({', '.join(settings)})" if settings else ""
        raise ValueError(
            f"{a.name} and {b.name} have other training or validation images{why}: only runs on "
            "the same images can be compared"
        )
    classes = [group.records[0].classes for group in (a, b)]  # none in old records
    places = (f"in {a.name}", f"in {b.name}")
    if all(classes) and (differs := difference(classes[0], classes[1], places)):
        raise ValueError(f"{a.name} and {b.name} can't be compared: {differs}")
    if not pooled_std(a.values, b.values) > 0:
        raise ValueError(f"{a.metric} is the same for all seeds: there is no noise to compare with")


def cautions(groups: Sequence[SeedNoiseReport]) -> list[str]:
    """Return the reasons why a comparison says less than it seems to."""
    metric = groups[0].metric
    found = [f"left out: {line}" for group in groups for line in group.left_out]
    if len({group.records[0].config_sha256 for group in groups}) < len(groups):
        found.append("some of the groups have the same config: a difference is chance")
    monitors = sorted({read_config(group.records[0].run)["monitor"] for group in groups})
    if len(monitors) > 1:
        found.append(f"the best epochs were picked by {' and '.join(monitors)}")
    if metric.startswith("val/"):
        found.append(
            "the best epochs were picked on these validation images: validation picks, test "
            "reports. For the claim, run `test --run FOLDER` for each run, then compare --test"
        )
    if metric.startswith("test/"):
        looks = max(max(record.tested, 1) for group in groups for record in group.records)
        if looks > 1 or len(groups) > 2:
            found.append(
                "once you choose by the test set, it no longer is one (at most "
                f"{looks} looks for a run, {len(groups)} variants here): choose by val/acc, and "
                "test only the choice"
            )
    if (variants := max(len(groups), *(group.variants for group in groups))) > 2:
        found.append(f"the best of {variants} variants looks better than it is")
    if len(groups) > 2:
        found.append("Holm's method corrects the p-values, and does not change the intervals")
    return found


def main(args: list[str]) -> int:
    """Carry out the command."""
    parser = OptionParser("compare", str(__doc__))
    parser.add_argument("groups", nargs="+", metavar="GROUP")
    parser.add_argument(
        "--metric", help="metric to compare; by default val/acc, or what the runs monitor"
    )
    parser.add_argument("--test", action="store_true", help="compare test/… instead of val/…")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(args)
    if len(options.groups) < 2:
        parser.error("two groups are needed, or more; a glob is one group, in quotes")
    metric = options.metric or find_group(options.groups[0], None).metric
    if options.test:
        metric = f"test/{metric.partition('/')[2] or metric}"
    groups = [find_group(spec, metric) for spec in options.groups]
    results = compare(groups)
    if options.json:
        notes = {"cautions": cautions(groups)}
        found = [result.json() | notes for result in results]
        print(json.dumps(found[0] if len(found) == 1 else found, indent=2, ensure_ascii=False))
        return 0
    rows = [[metric, *COLUMNS], *([group.name, *group.row()] for group in groups)]
    parts = [table(rows), *map(str, results)]
    parts.append("\n".join(f"- {line}" for line in cautions(groups)))
    print("\n\n".join(parts).rstrip())
    return 0
