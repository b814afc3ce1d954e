"""The settings of a configuration by their names, and the hash that tells configurations apart."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

NEUTRAL = (  # prefixes of settings that do not change what a run computes
    *("name", "ckpt_path", "checkpoint", "preflight", "max_wait_s", "loggers"),
    *("finite_check", "lr_monitor", "step_monitor", "curves", "pictures"),
    *("data.root", "data.num_workers", "data.memory_budget", "data.cache"),
    *("trainer.default_root_dir", "trainer.enable_", "trainer.logger", "trainer.profiler"),
    *("trainer.num_sanity_val_steps", "trainer.log_every_n_steps", "trainer.model_registry"),
    *("trainer.limit_test_batches", "trainer.limit_predict_batches"),
    *("trainer.detect_anomaly", "trainer.inference_mode"),
)


def flatten(config: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting with its name on the command line, such as `model.optimizer.lr`."""
    if not isinstance(config, dict):
        yield key, config
        return
    for name, value in config.items():
        inside = name in ("class_path", "init_args")
        yield from flatten(value, key if inside else f"{key}.{name}".lstrip("."))


def config_sha256(config: dict[str, Any]) -> str:
    """Return the hash of a configuration, without its seed and whatever can't change a result."""
    others = (*NEUTRAL, "seed_everything")
    # Settings that are null are left out, so that a new option does not change old hashes.
    given = {name: value for name, value in flatten(config) if value is not None}
    same = {name: value for name, value in given.items() if not name.startswith(others)}
    return hashlib.sha256(json.dumps(same, sort_keys=True, default=str).encode()).hexdigest()
