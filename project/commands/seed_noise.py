"""Train one config once per seed, and report how far the results differ by chance.

    %(prog)s --config fashion_mnist --seeds 5

Options that are not named here are those of `fit`. Each seed is a run folder of its own. The
command goes on where it was stopped: it takes what is finished, resumes what was interrupted, and
waits for what other processes train, so that the same command on several machines with one shared
folder divides the seeds among them.
"""

import re
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib import import_module

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..runs.errors import UsageError
from ..runs.names import PACKAGE, PROGRAM
from ..runs.sets import read_metrics
from .jobs import Job, work
from .table import OptionParser, check_name, take_apart
from .variants import Variant, variants


def parse_seeds(text: str) -> list[int]:
    """A number of seeds, from 0, or seeds with commas between them."""
    if not re.fullmatch(r"\d+(,\d+)*,?", text):
        raise UsageError(f"--seeds takes a number (5) or a list (3,7,11), got {text!r}")
    seeds = [int(seed) for seed in text.split(",") if seed]
    return list(dict.fromkeys(seeds)) if "," in text else list(range(seeds[0]))


class Display:
    """How the jobs stand: a live table on a terminal, else a line for each change."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.states: list[str] = ["waiting"] * len(jobs)
        self.shown = 0.0
        self.live = Live(auto_refresh=False) if Console().is_terminal else None

    def __call__(self) -> None:
        before, self.states = self.states, [job.state for job in self.jobs]
        if self.live and (before != self.states or time.monotonic() - self.shown > 1):
            self.live.update(self._table(), refresh=True)
            self.shown = time.monotonic()
        elif not self.live:
            for job, state in zip(self.jobs, before, strict=True):
                if job.state != state:
                    print(f"{job.folder.name}, seed {job.seed}: {describe(job)}", flush=True)

    def _table(self) -> Table:
        table = Table("runs", "seed", "state")
        for job in self.jobs:
            progress = _progress(job) if job.state == "training" else ""
            table.add_row(job.folder.name, str(job.seed), Text(describe(job) + progress))
        return table


def describe(job: Job) -> str:
    """The state of a job, in words."""
    if job.state == "elsewhere":
        return "another process is at it: waiting"
    if not job.result:
        return f"{job.state}: {job.reason}" if job.reason else job.state
    metrics = [f"{k} {v:.4f}" for k, v in job.result.metrics.items() if k.startswith("val/")]
    epoch, took = job.result.best_epoch, f"{job.result.seconds:.0f} s"
    best = [*([] if epoch is None else [f"best epoch {epoch + 1}"]), *metrics, took]
    return f"{'taken as it is' if job.process is None else 'finished'}: {', '.join(best)}"


def _progress(job: Job) -> str:
    record, text = job.record(), f", {time.monotonic() - job.begin:.0f} s"
    if not record:
        return text
    metrics = read_metrics(record.run)
    names = [name for name in metrics if name.startswith("val/")]
    newest = [f", {name} {metrics[name][-1][1]:.4f}" for name in names]
    return f" epoch {metrics['epoch'][-1][1] + 1:.0f}{''.join(newest)}{text}" if newest else text


def report(found: Sequence[Variant], name: str, metric: str | None) -> list[str]:
    """Write and print what the runs say.

    Returns:
        Why there is no report on some of the variants.
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
    """The command: exit code 1 if a seed failed, 128 + signal if it was stopped."""
    parser = OptionParser("seed_noise", str(__doc__))
    parser.add_argument("--seeds", default="5", help="their number, or a list: 3,7,11")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--name", help="of the runs; by default the config's")
    parser.add_argument("--metric", help="of the report; by default val/acc or the monitored one")
    text = "option of fit and values, as in model.optimizer.lr=1e-3,2e-3; repeat it for a grid"
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
    display = Display(jobs)
    with display.live or nullcontext():
        stopped = work(jobs, options.jobs, display)
    if stopped:
        again = shlex.join([*PROGRAM.split(), "seed_noise", *args])
        print(f"Stopped; what was trained is saved. To continue: {again}")
        return 128 + stopped
    missing = report(found, name, options.metric)
    lost = [job for job in jobs if job.state != "finished"]
    wrong = [f"{job.folder.name}, seed {job.seed}: {describe(job)}" for job in lost] + missing
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0
