"""Random numbers that depend on a key alone, so that no other code can change them."""

import hashlib
import struct

import torch


def generator(*key: int) -> torch.Generator:
    """Return a random generator that depends on `key` and nothing else, like JAX's `fold_in`."""
    digest = hashlib.blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
