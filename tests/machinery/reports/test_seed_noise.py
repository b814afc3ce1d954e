"""The report on the seeds of one config, and on several configs, from run folders by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from project.reports.seed_figures import draw_seeds, draw_sweep
from project.reports.seed_report import SeedNoiseReport
from project.reports.sweep import SweepReport
from project.reports.tables import Scale, table
from tests.machinery.support.runs import write_runs

VALUES = [0.84, 0.85, 0.845, 0.835, 0.855]  # mean 0.845, sum of squares 2.5e-4
FOLDER = Path("runs/mlp")


def change(version: int, **more: Any) -> None:
    path = FOLDER / f"version_{version}/run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


def test_numbers_of_five_seeds() -> None:
    write_runs(FOLDER, VALUES)
    SeedNoiseReport.of(FOLDER).save(FOLDER)
    found = json.loads((FOLDER / "seed_noise.json").read_text())
    promised = "metric seeds values mean std min max ci95 detectable_at_80"
    assert list(found)[:9] == promised.split()
    assert (found["metric"], found["seeds"], found["values"]) == ("val/acc", [*range(5)], VALUES)
    std = math.sqrt(2.5e-4 / 4)
    half = 2.7764 * std / math.sqrt(5)
    assert found["mean"] == pytest.approx(0.845)
    assert found["std"] == pytest.approx(std)
    assert found["ci95"] == pytest.approx([0.845 - half, 0.845 + half], rel=1e-5)
    assert (found["min"], found["max"]) == (0.835, 0.855)
    assert found["detectable_at_80"] == pytest.approx(2.084 * std, rel=1e-3)
    assert found["sampling_std"] == pytest.approx(math.sqrt(0.845 * 0.155 / 2000))
    assert [run["metrics"]["val/loss"] for run in found["runs"]] == [1 - v for v in VALUES]


def test_what_a_reader_sees() -> None:
    write_runs(FOLDER, VALUES)
    SeedNoiseReport.of(FOLDER).save(FOLDER)
    text = (FOLDER / "seed_noise.md").read_text(encoding="utf-8")
    assert text.startswith("# mlp: val/acc 84.50 ± 0.79 % (5 seeds)\n")
    assert "| 3    | 2          | 0.1650   | 83.50 % | 7       | version_3 |" in text
    for row in (
        "95 % interval of the mean (Student's t)                   | 83.52 to 85.48 %",
        "standard deviation (n − 1)                                | 0.79 points",
        "range                                                     | 83.50 to 85.50 %, 2.00 points",
        "sampling std of 2,000 validation images                   | 0.81 points",
        "smallest difference that 5 seeds a side show (80 % power) | 1.65 points",
    ):
        assert row in text
    assert "a difference of 0.40, 0.79, 1.58 points (0.5, 1, 2 standard deviations)" in text
    assert "at 80 % power: 64, 17, 6." in text
    assert "validation picks, test reports" in text
    assert "Left out" not in text


def test_a_loss_is_a_number_without_points_or_sampling_std() -> None:
    write_runs(FOLDER, VALUES)
    report = SeedNoiseReport.of(FOLDER, "val/loss")
    assert "# mlp: val/loss 0.1550 ± 0.0079 (5 seeds)" in str(report)
    assert "points" not in str(report)
    assert report.sampling_std is None


def test_only_an_accuracy_is_in_percent_and_has_a_sampling_std() -> None:
    write_runs(Path("runs/a"), VALUES, metrics={"val/bacc": 0.5})
    assert SeedNoiseReport.of(Path("runs/a"), "val/bacc").sampling_std is None
    assert Scale("val/bacc", 0.1).value(0.5) == "0.50"
    assert Scale("test/acc", 0.01).value(0.5) == "50.0 %"


def test_without_the_number_of_images_there_is_no_sampling_std() -> None:
    write_runs(FOLDER, VALUES, examples={})
    assert "sampling" not in str(SeedNoiseReport.of(FOLDER))


def test_runs_that_do_not_count_are_named_with_the_reason() -> None:
    write_runs(FOLDER, [*VALUES, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7])
    change(5, stopped_by="SIGTERM")
    change(6, stopped_by=None)
    change(7, config_sha256="other")
    change(8, metrics={"val/acc": math.nan})
    change(9, data_sha256="other")
    change(10, seed=2)
    report = SeedNoiseReport.of(FOLDER, "val/acc", "c")
    assert report.values == VALUES
    reasons = "stopped by SIGTERM|not finished|another config|val/acc is nan"
    reasons += "|other data than version_0|the same seed as version_2"
    expected = zip(range(5, 11), reasons.split("|"), strict=True)
    seeds = [*range(5, 10), 2]
    assert report.left_out == [
        f"{FOLDER / f'version_{k}'} (seed {seeds[k - 5]}): {reason}" for k, reason in expected
    ]
    assert "version_5 (seed 5): stopped by SIGTERM\n- " in str(report)


def test_metric_is_the_monitored_one_where_there_is_no_accuracy() -> None:
    write_runs(FOLDER, VALUES)
    for version, value in enumerate(VALUES):
        change(version, metrics={"val/loss": value})
    assert SeedNoiseReport.of(FOLDER).metric == "val/loss"


def test_one_run_is_no_noise() -> None:
    write_runs(FOLDER, VALUES[:2])
    change(1, stopped_by="SIGTERM")
    expected = r"two finished runs or more: 1 in .*mlp; .*version_1 \(seed 1\): stopped by SIGTERM"
    with pytest.raises(ValueError, match=expected):
        SeedNoiseReport.of(FOLDER)


def test_all_seeds_the_same() -> None:
    write_runs(FOLDER, [0.5, 0.5, 0.5])
    report = SeedNoiseReport.of(FOLDER)
    assert (report.std, report.ci95, report.detectable) == (0, [0.5, 0.5], 0)
    assert "# mlp: val/acc 50.00 ± 0.00 % (3 seeds)" in str(report)


def test_figure_shows_each_seed_its_curve_the_mean_and_the_interval() -> None:
    write_runs(FOLDER, VALUES)
    (FOLDER / "version_4/metrics.csv").unlink()  # of a run without a logger
    report = SeedNoiseReport.of(FOLDER)
    dots, curves = draw_seeds(report).axes
    mean, *seeds = dots.lines
    assert list(mean.get_ydata()) == pytest.approx([84.5, 84.5])
    assert [line.get_ydata()[0] for line in seeds] == pytest.approx([100 * v for v in VALUES])
    (band,) = dots.patches
    assert [band.get_y(), band.get_y() + band.get_height()] == pytest.approx(
        [100 * end for end in report.ci95]
    )
    assert len(curves.lines) == 5
    assert list(curves.lines[0].get_xdata()) == [1, 2, 3]
    assert list(curves.lines[0].get_ydata()) == pytest.approx([74, 79, 84])
    best = [(text.get_text(), *text.get_position()) for text in curves.texts]
    assert best == [(str(k), 2, pytest.approx(100 * v - 5)) for k, v in enumerate(VALUES[:4])]
    report.save(FOLDER)
    assert (FOLDER / "seed_noise.png").read_bytes().startswith(b"\x89PNG")


def test_digits_follow_the_noise() -> None:
    assert Scale("val/acc", 0.0052).value(0.84619) == "84.62 %"
    assert Scale("val/acc", 0.052).value(0.84619) == "84.6 %"
    assert Scale("val/loss", 0.00052).value(0.84619) == "0.84619"
    assert Scale("val/loss", 12.0).difference(123.4) == "123"


def test_table_is_aligned() -> None:
    lines = table([["a", "long"], ["longer", 1]]).split("\n")
    assert lines == ["| a      | long |", "| ------ | ---- |", "| longer | 1    |"]


def sweep(metric: str = "val/acc") -> SweepReport:
    runs = {"lr=1e-3": VALUES, "lr=2e-3": [v + 0.05 for v in VALUES]}
    runs["lr=5e-3"] = [v + 0.051 for v in reversed(VALUES)]
    for label, values in runs.items():
        write_runs(Path(f"runs/mlp-{label}"), values)
    folders = [Path(f"runs/mlp-{label}") for label in runs]
    return SweepReport("mlp", [SeedNoiseReport.of(folder, metric) for folder in folders])


def test_sweep_is_sorted_and_says_what_can_be_told_apart() -> None:
    path = sweep().save(Path("runs"))
    assert path == Path("runs/mlp-lr.md")
    text = path.read_text(encoding="utf-8")
    rows = [line.split("|")[1:] for line in text.splitlines() if line.startswith("| lr")]
    assert [row[0].strip() for row in rows] == ["lr=5e-3", "lr=2e-3", "lr=1e-3"]
    assert [float(row[5]) for row in rows] == [3, 3, 3], "epochs"
    assert "lr=5e-3 has the best mean, and can't be told from lr=2e-3 with these seeds." in text
    found = json.loads(Path("runs/mlp-lr.json").read_text())
    assert found["p"][0] is None
    assert found["p"][1] > 0.05 > found["p"][2]
    assert Path("runs/mlp-lr.png").is_file()


def test_a_sweep_over_other_images_is_refused() -> None:
    write_runs(Path("runs/a-split_seed=0"), VALUES)
    write_runs(Path("runs/a-split_seed=1"), VALUES, data_sha256="other")
    reports = [SeedNoiseReport.of(Path(f"runs/a-split_seed={seed}")) for seed in (0, 1)]
    with pytest.raises(ValueError, match="only runs on the same images can be compared"):
        SweepReport("a", reports)


def test_lower_is_better_for_a_loss() -> None:
    reports = sweep("val/loss").reports
    assert [report.mean for report in reports] == sorted(report.mean for report in reports)


def test_a_sweep_by_a_metric_whose_direction_is_not_recorded_says_so() -> None:
    for name, values in (("low", [0.1, 0.11, 0.12]), ("high", [0.5, 0.51, 0.52])):
        for seed, value in enumerate(values):
            metrics = {"val/wer": value}
            write_runs(Path(f"runs/a-{name}"), [0.5], first_seed=seed, metrics=metrics)
    found = [SeedNoiseReport.of(Path(f"runs/a-{name}"), "val/wer") for name in ("low", "high")]
    unknown = SweepReport("a", found)
    assert "high is higher than all others. No run records whether a lower" in str(unknown)
    for report in found:
        for record in report.records:
            record.modes["val/wer"] = "min"
    assert "low is better than all others." in str(SweepReport("a", found))


def test_p_values_of_a_sweep_are_corrected_for_all_pairs() -> None:
    from project.reports.statistics import holm, welch

    found = sweep()
    a, b, c = (report.values for report in found.reports)
    assert found.p_values == pytest.approx(holm([welch(a, b).p, welch(a, c).p, welch(b, c).p])[:2])


def test_sweep_figure_has_every_seed_and_mean() -> None:
    (axes,) = draw_sweep(sweep()).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["lr=5e-3", "lr=2e-3", "lr=1e-3"]
    dots = [line for line in axes.lines if len(line.get_xdata()) == 5]
    assert sorted(dots[-1].get_ydata()) == pytest.approx(sorted(100 * v for v in VALUES))
