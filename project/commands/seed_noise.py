"""Train one config once per seed, and report how far the results differ by chance.

    %(prog)s --config fashion_mnist --seeds 5

Options that are not named here are those of `fit`. Each seed has a run folder of its own. The same
command continues where it was stopped: it reuses finished runs, resumes interrupted ones, and waits
for those that other processes are training. So the same command on several machines with one shared
folder divides the seeds among them.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

from ..runs.errors import UsageError
from ..runs.names import PACKAGE, PROGRAM
from .job import Job, Status
from .jobs import run_jobs
from .table import OptionParser, check_name, take_apart
from .variants import Variant, variants


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that a number of them, or a list with commas, stands for."""
    if not re.fullmatch(r"\d+(,\d+)*,?", text):
        raise UsageError(f"--seeds takes a number (5) or a list (3,7,11), got {text!r}")
    seeds = [int(seed) for seed in text.split(",") if seed]
    return list(dict.fromkeys(seeds)) if "," in text else list(range(seeds[0]))


def show(job: Job, status: Status) -> None:
    """Print how a job stands."""
    print(f"{job}: {describe(job, status)}\n", end="", flush=True)  # whole, from several threads


def describe(job: Job, status: Status) -> str:
    """Return the status of a job, in words."""
    if status.state == "elsewhere":
        return "being trained by another process, waiting"
    if status.state == "training":
        return f"training, log in {job.log}"
    if status.record is None:
        return f"{status.state}: {status.reason}" if status.reason else status.state
    record = status.record
    metrics = [f"{k} {v:.4f}" for k, v in record.metrics.items() if k.startswith("val/")]
    best = [] if record.best_epoch is None else [f"best epoch {record.best_epoch + 1}"]
    return f"{status.state}: {', '.join([*best, *metrics, f'{record.seconds:.0f} s'])}"


def report(found: Sequence[Variant], name: str, metric: str | None) -> list[str]:
    """Write and print the reports on the runs.

    Args:
        found: Variants of the config.
        name: Name of the config.
        metric: Metric to report on, if one was given.

    Returns:
        Reasons why some of the variants have no report.
    """
    from ..reports.seed_report import SeedNoiseReport
    from ..reports.sweep import SweepReport

    reports: list[SeedNoiseReport] = []
    missing = []
    for variant in found:
        try:
            made = SeedNoiseReport.of(variant.folder, metric, variant.sha256, len(found))
        except ValueError as error:
            missing.append(str(error))
            continue
        metric = made.metric  # the same for all
        made.save(variant.folder)
        reports.append(made)
    if len(found) == 1 and reports:
        print(f"\n{reports[0]}\n\nReport: {found[0].folder}/seed_noise.md, .json and .png")
    elif len(reports) > 1:
        sweep = SweepReport(name, reports)
        print(f"\n{sweep}\n\nReport: {sweep.save(found[0].folder.parent)}, .json and .png")
    return missing


def main(args: list[str]) -> int:
    """Run the command: exit code 1 if a seed failed, 128 + signal if it was stopped."""
    parser = OptionParser("seed_noise", str(__doc__))
    parser.add_argument("--seeds", default="5", help="number of seeds, or a list of them: 3,7,11")
    parser.add_argument("--jobs", type=int, default=1, help="number of trainings at a time")
    parser.add_argument("--name", help="name of the runs; by default the config's")
    parser.add_argument(
        "--metric", help="metric of the report; by default val/acc or the monitored one"
    )
    text = (
        "option of fit and its values, such as model.optimizer.lr=1e-3,2e-3; repeat it for a grid"
    )
    parser.add_argument("--sweep", action="append", default=[], metavar="KEY=V1,V2", help=text)
    options, rest = parser.parse_known_args(args)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} must be 1 or more")
    seeds, name = parse_seeds(options.seeds), options.name or take_apart(rest).name
    check_name(name)
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(variants, name, options.sweep, rest)
        for module in (f"{PACKAGE}.reports.seed_figures", "scipy.stats"):
            import_module(module)  # of the report: a second, while the check starts
    found = checked.result()
    jobs = [Job(variant, seed) for seed in seeds for variant in found]
    ended, stopped_by = run_jobs(jobs, options.jobs, show)
    missing = report(found, name, options.metric)
    if stopped_by:
        again = shlex.join([*PROGRAM.split(), "seed_noise", *args])
        print(f"\nStopped; what was trained is saved. To continue: {again}")
        return 128 + stopped_by
    wrong = [
        f"{job}: {describe(job, status)}"
        for job, status in zip(jobs, ended, strict=True)
        if status.record is None
    ]
    for line in wrong + missing:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong or missing else 0
