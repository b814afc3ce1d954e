"""Verdicts on sets of runs, from run folders by hand."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import scipy
import yaml

from project.commands.compare import main
from project.reports.statistics import seeds_needed
from project.runs.errors import UsageError
from tests.machinery.support.runs import write_runs

A = [0.84, 0.85, 0.845, 0.835, 0.855]
B = [0.86, 0.87, 0.865, 0.855, 0.88]


def runs(name: str, values: Sequence[float], **more: Any) -> str:
    """Runs of a config of their own."""
    write_runs(Path(name), values, **{"config_sha256": name, **more})
    return name


def verdict(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert main([*args, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def text(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main([*args]) == 0
    return capsys.readouterr().out


def test_promised_keys_and_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict(capsys, runs("a", A), runs("b", B))
    assert list(found)[:7] == ["metric", "n", "mean", "difference", "ci95", "p", "verdict"]
    expected = scipy.stats.ttest_ind(B, A, equal_var=False)
    interval = expected.confidence_interval()
    assert (found["metric"], found["n"]) == ("val/acc", [5, 5])
    assert found["mean"] == pytest.approx([0.845, 0.866])
    assert found["difference"] == pytest.approx(0.021)
    assert found["ci95"] == pytest.approx([interval.low, interval.high])
    assert found["p"] == pytest.approx(expected.pvalue)
    assert found["verdict"] == "b is better than a by 2.1 ± 1.3 points"


def test_a_lower_loss_is_better(capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict(capsys, runs("a", A), runs("b", B), "--metric", "val/loss")
    assert found["difference"] == pytest.approx(-0.021)
    assert found["verdict"] == "b is better than a by 0.021 ± 0.013"
    assert verdict(capsys, "b", "a")["verdict"] == "b is better than a by 2.1 ± 1.3 points"


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        ({"modes": {"val/wer": "min"}}, "a is better than b by"),
        ({"modes": {"val/wer": "max"}}, "b is better than a by"),
        ({}, "b is higher (whether that is better is not recorded) than a by"),
    ],
)
def test_the_direction_of_another_metric_is_recorded_and_not_guessed(
    recorded: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, values in (("a", A), ("b", B)):
        for seed, value in enumerate(values):
            wer: dict[str, Any] = {"metrics": {"val/wer": value}, "first_seed": seed}
            write_runs(Path(name), [0.5], **wer, **recorded)
    assert verdict(capsys, "a", "b", "--metric", "val/wer")["verdict"].startswith(words)


def test_what_cannot_be_seen_says_how_many_seeds_would_show_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    near = runs("near", [value + 0.008 for value in A])
    found = verdict(capsys, runs("a", A), near)
    assert found["effect"] == pytest.approx(0.008 / 0.0079057, rel=1e-4)
    assert found["verdict"] == (
        "no difference can be seen at n = 5; 17 seeds a side would show 0.80 points, the one "
        "measured"
    )
    # A difference that would take 6,280 seeds is nobody's aim; a half standard deviation is said.
    same = runs("same", [value + 0.0004 for value in A[:4]])
    assert verdict(capsys, "a", same)["verdict"] == (
        "no difference can be seen at n = 4 and 5; 64 seeds a side would show 0.37 points"
    )


def test_seeds_needed_are_more_than_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    # One side alone varies, so that Welch's test needs more seeds than equal deviations would.
    runs("still", [0.8, 0.8, 0.8])
    center = 0.8 + 3.51 * 0.01 / math.sqrt(2)
    runs("wild", [center - 0.01, center, center + 0.01])
    found = verdict(capsys, "still", "wild")
    assert 0.05 < found["p"] < 0.0505
    assert seeds_needed(found["effect"]) == 3
    assert "no difference can be seen at n = 3; 4 seeds a side would show" in found["verdict"]


def test_several_comparisons_are_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    slightly = [value + 0.013 for value in A]
    groups = [runs("a", A), *(runs(name, slightly) for name in ("b", "c", "d"))]
    (alone,) = [verdict(capsys, "a", "b")]
    assert 0.017 < alone["p"] < 0.05
    main([*groups, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [result["groups"] for result in found] == [["a", name] for name in "bcd"]
    assert [result["p"] for result in found] == pytest.approx([3 * alone["p"]] * 3)
    said = text(capsys, *groups)
    assert "no difference can be claimed after 3 comparisons: b looks better than a by 1." in said
    assert "4 variants" in said
    assert "who chooses" not in said


def test_globs_and_single_runs_name_groups(capsys: pytest.CaptureFixture[str]) -> None:
    runs("a", A)
    runs("b", B)
    found = verdict(capsys, "a/version_[0-2]", "b/version_0,b/version_3,b/version_4")
    assert found["n"] == [3, 3]
    assert found["mean"] == pytest.approx([sum(A[:3]) / 3, (B[0] + B[3] + B[4]) / 3])


def test_folders_may_have_commas_and_brackets_in_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = verdict(capsys, runs("mlp-hidden_sizes=_32,_16_", A), runs("[b]", B))
    assert found["n"] == [5, 5]


def test_report_folder_stands_for_the_runs_of_its_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs("a", A)
    runs("b", B)
    write_runs(Path("b"), [0.5, 0.5], first_seed=5, config_sha256="another")
    with pytest.raises(ValueError, match="b holds runs of 2 configs"):
        main(["a", "b"])
    Path("b/seed_noise.json").write_text(json.dumps({"config_sha256": "b", "variants": 6}))
    assert verdict(capsys, "a", "b")["n"] == [5, 5]
    said = text(capsys, "a", "b")
    assert "left out: " in said
    assert "another config" in said
    assert "the best of 6 variants looks better than it is" in said


def test_other_data_are_refused_with_the_settings_that_differ() -> None:
    runs("a", A)
    runs("b", B, data_sha256="other")
    for run in Path("b").iterdir():
        config = {"monitor": "val/loss", "data": {"init_args": {"val_size": 1000}}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    expected = re.escape("a and b have other training or validation images (val_size 2000 → 1000)")
    with pytest.raises(ValueError, match=expected):
        main(["a", "b"])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["a", "one"], r"two finished runs or more: 1 in one"),
        (["a", "a"], r"a and a share runs"),
        (["a", "a/version_*"], r"share runs"),
        (["a", "b", "--metric", "val/f1"], r"0 in a; .*no val/f1"),
        (["a", "b", "--test"], r"no test/acc; .*`python -m project test --run FOLDER` adds it"),
        (["a", "nowhere"], r"nowhere is neither a run folder nor a folder of runs"),
        (["constant", "constant2"], r"the same for all seeds"),
    ],
)
def test_what_cannot_be_compared_is_refused(groups: list[str], message: str) -> None:
    runs("a", A)
    runs("b", B)
    runs("one", [0.9])
    runs("constant", [0.5, 0.5])
    runs("constant2", [0.6, 0.6])
    with pytest.raises(ValueError, match=message):
        main(groups)


@pytest.mark.parametrize("args", [["a"], [], ["a", "b", "--metrics", "x"]])
def test_wrong_command_lines(args: list[str]) -> None:
    with pytest.raises(UsageError, match="see python -m project compare --help"):
        main(args)


def test_cautions(capsys: pytest.CaptureFixture[str]) -> None:
    tested = {"metrics": {"test/acc": 0.8}}
    runs("a", A, **tested)
    runs("b", B, **tested)
    runs("c", B, config_sha256="b")
    for version in range(5):
        path = Path(f"c/version_{version}/config.yaml")
        path.write_text(path.read_text().replace("val/loss", "val/acc"))
        record = json.loads(Path(f"b/version_{version}/run.json").read_text())
        record["metrics"]["test/acc"] += 0.01 * version
        for name in "abc":
            own = json.loads(Path(f"{name}/version_{version}/run.json").read_text())
            own["metrics"]["test/acc"] = record["metrics"]["test/acc"]
            Path(f"{name}/version_{version}/run.json").write_text(json.dumps(own))
    assert "validation picks, test reports" in text(capsys, "a", "b")
    assert "validation picks, test reports" in verdict(capsys, "a", "b")["cautions"][0]
    two = text(capsys, "a", "b", "--test")
    assert "| test/acc |" in two
    assert "validation" not in two
    assert "once you choose by the test set" not in two
    three = text(capsys, "a", "b", "c", "--test")
    assert "once you choose by the test set, it no longer is one" in three
    assert "at most 1 looks for a run, 3 variants here" in three
    assert "some of the groups have the same config" in three
    assert "picked by val/acc and val/loss" in three
    path = Path("b/version_3/run.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tested": 4}))
    assert "at most 4 looks for a run, 2 variants here" in text(capsys, "a", "b", "--test")


def test_a_metric_of_one_class_is_compared_by_the_direction_of_the_metric(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, values in (("a", A), ("b", B)):
        for seed, value in enumerate(values):
            measured = {"val/miss/cat": value, "test/miss/cat": value, "val/acc/cat": value}
            modes = {"val/miss": "min"}
            runs(name, [0.5], first_seed=seed, metrics=measured, modes=modes)
    for args in ((), ("--test",)):
        found = verdict(capsys, "a", "b", "--metric", "val/miss/cat", *args)
        assert found["metric"] == ("test/miss/cat" if args else "val/miss/cat")
        assert found["verdict"] == "a is better than b by 0.021 ± 0.013"
    found = verdict(capsys, "a", "b", "--metric", "val/acc/cat")
    assert found["verdict"] == "b is better than a by 2.1 ± 1.3 points"
