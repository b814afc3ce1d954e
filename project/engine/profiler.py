"""A report in words on where the time of a training step goes: `--config presets/profile`."""

import re
from statistics import mean

import torch
from lightning.pytorch.profilers import SimpleProfiler

# What Lightning's profiler actions are called in the report. The optimiser's step contains forward
# and backward, and both of them contain callbacks.
PARTS = {
    "reading the batch": r"\.train_dataloader_next$",
    "moving it to the device": r"\]\w+\.batch_to_device$",
    "forward and loss": r"\[Strategy\]\w+\.training_step$",
    "backward": r"\[Strategy\]\w+\.backward$",
    "optimiser": r"\[LightningModule\]\w+\.optimizer_step$",
    "callbacks": r"\[Callback\].*\.on_(train_batch|before|after)_\w+$",
}
WITHIN_BACKWARD = r"\[Callback\].*\.on_(before|after)_backward$"
WITHIN_OPTIMIZER = r"\[Callback\].*\.on_before_(optimizer_step|zero_grad)$"
WAITING, LOOP = 0.2, 0.4  # shares of a step above which the report gives advice
DATA = """It waits for data: keep the images in memory (--data.memory_budget), read them with more
processes (--data.num_workers), or change them less (--data.augment)."""
PYTHON = "Much of it is Python around the arithmetic, of which a larger --data.batch_size has less."
ARITHMETIC = """It is arithmetic: --trainer.precision bf16-mixed, a smaller network or a faster
device shorten it."""


class StepProfiler(SimpleProfiler):
    """Reports, after the run, where the time of a training step goes.

    The end of each part waits for the device, so that each part is charged for its own work. This
    makes the run slower than it is without the profiler. The first step, which chooses kernels, is
    left out.
    """

    def stop(self, action_name: str) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        super().stop(action_name)

    def parts(self) -> dict[str, float]:
        """Return the mean time of each part of a training step, in seconds."""
        steps = len(self.recorded_durations.get("run_training_batch", ())) - 1
        if steps < 1:
            return {}
        found = {name: self._per_step(pattern, steps) for name, pattern in PARTS.items()}
        found["Lightning's loop"] = self._per_step("run_training_batch", steps) - found["optimiser"]
        found["optimiser"] -= found["forward and loss"] + found["backward"]
        found["optimiser"] -= self._per_step(WITHIN_OPTIMIZER, steps)
        found["backward"] -= self._per_step(WITHIN_BACKWARD, steps)
        return found

    def _per_step(self, pattern: str, steps: int) -> float:
        times = [d[1:] for name, d in self.recorded_durations.items() if re.search(pattern, name)]
        # Batches of validation are moved to the device too; each is assumed to take as long as one
        # of training.
        return sum(mean(d) * min(len(d) / steps, 1.0) for d in times if d)

    def summary(self) -> str:
        parts = self.parts()
        if not parts:
            return "A profile needs two training steps or more."
        step = sum(parts.values())
        lines = [f"A training step of {1e3 * step:.3f} ms:"]
        for name, seconds in sorted(parts.items(), key=lambda part: -part[1]):
            lines.append(f"{1e3 * seconds:9.3f} ms {seconds / step:6.1%}  {name}")
        if parts["reading the batch"] > WAITING * step:
            return "\n".join([*lines, DATA])
        around = parts["callbacks"] + parts["Lightning's loop"]
        return "\n".join([*lines, PYTHON if around > LOOP * step else ARITHMETIC])
