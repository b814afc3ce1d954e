"""Compare sets of runs, each of one config with several seeds.

Each GROUP is a folder of runs (runs/cifar), run folders with commas between them, or a glob in
quotes ("runs/cifar/version_[0-4]"). All are compared with the first one, by Welch's t-test; the
p-values of several comparisons are corrected by Holm's method.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from project.reports.runs import Group, default_metric
from project.reports.statistics import holm, pooled_std, t_interval, welch
from project.reports.tables import Scale, table
from project.reports.verdict import Result
from project.usage import OptionParser


def compare(groups: Sequence[Group], metric: str) -> list[Result]:
    """Compare each group with the first one.

    Raises:
        ValueError: If groups share runs, or their data or metrics differ.
    """
    first, *others = groups
    for group in others:
        check_comparable(first, group, metric)
    found = [welch(first.values(metric), group.values(metric)) for group in others]
    corrected = holm([comparison.p for comparison in found])
    return [
        Result((first, group), metric, comparison, float(p), len(others))
        for group, comparison, p in zip(others, found, corrected, strict=True)
    ]


def check_comparable(a: Group, b: Group, metric: str) -> None:
    """Refuse groups that share runs, have other data, or do not vary."""
    if shared := {r["run"] for r in a.records} & {r["run"] for r in b.records}:
        raise ValueError(f"{a.name} and {b.name} share runs, such as {min(shared)}")
    if a.records[0]["data_sha256"] != b.records[0]["data_sha256"]:
        data = [group.config["data"].get("init_args", {}) for group in (a, b)]
        changed = [k for k in data[0] | data[1] if data[0].get(k) != data[1].get(k)]
        settings = [f"{k} {data[0].get(k)} → {data[1].get(k)}" for k in changed]
        why = f" ({', '.join(settings)})" if settings else ""
        raise ValueError(
            f"{a.name} and {b.name} have other training or validation images{why}: only runs on "
            "the same images can be compared"
        )
    if not pooled_std(a.values(metric), b.values(metric)) > 0:
        raise ValueError(f"{metric} is the same for all seeds: there is no noise to compare with")


def cautions(groups: Sequence[Group], metric: str) -> list[str]:
    """What makes a comparison say less than it seems to."""
    found = [f"left out: {line}" for group in groups for line in group.left_out]
    if len({group.records[0]["config_sha256"] for group in groups}) < len(groups):
        found.append("some of the groups have the same config: a difference is chance")
    monitors = sorted({group.config["monitor"] for group in groups})
    if len(monitors) > 1:
        found.append(f"the best epochs were picked by {' and '.join(monitors)}")
    if metric.startswith("val/"):
        found.append(
            "the best epochs were picked on these validation images: validation picks, test "
            "reports. For the claim, run `test --run FOLDER` for each run, then compare --test"
        )
    if metric.startswith("test/"):
        looks = max(record.get("tested", 1) for group in groups for record in group.records)
        if looks > 1 or len(groups) > 2:
            found.append(
                f"who chooses by the test set has none left (at most {looks} looks for a run, "
                f"{len(groups)} variants here): choose by val/acc, and compare the choice alone"
            )
    if (variants := max(len(groups), *(group.variants for group in groups))) > 2:
        found.append(f"of {variants} variants tried, the best looks better than it is")
    if len(groups) > 2:
        found.append("p-values are corrected by Holm; intervals are of each comparison alone")
    return found


def overview(groups: Sequence[Group], metric: str) -> str:
    """Mean and spread of each group."""
    rows: list[list[Any]] = [[metric, "n", "mean", "95 % interval", "seed std"]]
    for group in groups:
        values = group.values(metric)
        scale = Scale(metric, float(np.std(values, ddof=1)))
        interval, std = scale.interval(*t_interval(values)), scale.difference(scale.std)
        rows.append([group.name, len(values), scale.value(float(np.mean(values))), interval, std])
    return table(rows)


def main(args: list[str]) -> int:
    """The command."""
    parser = OptionParser("compare", str(__doc__))
    parser.add_argument("groups", nargs="+", metavar="GROUP")
    parser.add_argument("--metric", help="by default val/acc, else what the runs monitor")
    parser.add_argument("--test", action="store_true", help="compare test/… instead of val/…")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(args)
    if len(options.groups) < 2:
        parser.error("two groups are needed, or more; a glob is one group, in quotes")
    metric = options.metric or default_metric(Group.of(options.groups[0]).records)
    if options.test:
        metric = f"test/{metric.split('/')[-1]}"
    groups = [Group.of(spec, metric) for spec in options.groups]
    results = compare(groups, metric)
    if options.json:
        found = [result.json() for result in results]
        print(json.dumps(found[0] if len(found) == 1 else found, indent=2, ensure_ascii=False))
        return 0
    parts = [overview(groups, metric), *map(str, results)]
    parts.append("\n".join(f"- {line}" for line in cautions(groups, metric)))
    print("\n\n".join(parts).rstrip())
    return 0
