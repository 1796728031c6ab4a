"""GPU cards and their memory, from data/engine/cards.toml (notebook 02)."""

from __future__ import annotations

from typing import Any

from engines import EngineError
from engines.compass import table
from servinglab.errors import did_you_mean


def gigabytes(count: float) -> str:
    """Bytes in GB (10^9 bytes), in MB (10^6 bytes) below one."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def cards() -> dict[str, dict[str, Any]]:
    """{name: {label, gib, source, aliases, bytes}} of the GPU cards that are known."""
    return {name: {"aliases": [], **card, "bytes": round(card["gib"] * 2**30)} for name, card in table("cards").items()}


def card(gpu: str | int) -> tuple[str, int]:
    """(label, bytes) of a card by its name in `cards`, or of a number of bytes. Raises EngineError."""
    if isinstance(gpu, int):
        return f"a GPU of {gigabytes(gpu)}", gpu
    known = {alias: entry for name, entry in cards().items() for alias in (name, *entry["aliases"])}
    if gpu.lower() not in known:
        raise EngineError(f"No card {gpu!r} is known; known are {', '.join(known)}.{did_you_mean(gpu, known)}")
    entry = known[gpu.lower()]
    return f"{entry['label']} (CUDA shows {gigabytes(entry['bytes'])})", entry["bytes"]
