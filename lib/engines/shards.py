"""The checkpoint folder of TensorRT-LLM on disk: config.json and one rankN.safetensors for each rank."""

import contextlib
import errno
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import save_file

from engines import EngineError
from engines.config import read_json

_OURS = re.compile(r"config\.json|rank\d+\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """config: its config.json. ranks: for each, {name: torch tensor}, weights [out, in], mapped from the disk."""

    config: dict[str, Any]
    ranks: list[dict[str, Any]]


def load_checkpoint(folder: str | Path) -> Checkpoint:
    """Read the checkpoint in `folder`, all ranks. Raises EngineError when it is something else, or not whole."""
    from safetensors.torch import load_file

    folder = Path(folder)
    config = read_json(folder / "config.json")
    mapping = config.get("mapping")
    if "pretrained_config" in config:
        raise EngineError(f"{folder} is an engine; give the checkpoint that it was built from.")
    if not isinstance(mapping, dict) or not isinstance(mapping.get("world_size"), int):
        raise EngineError(f"{folder} is no TensorRT-LLM checkpoint (its config.json has no mapping); convert it first.")
    if mapping["world_size"] != mapping.get("tp_size"):
        raise EngineError(f"{folder} is split into pipeline stages too; only tensor parallelism is read here.")
    ranks = []
    for rank in range(mapping["world_size"]):
        path = folder / f"rank{rank}.safetensors"
        if not path.is_file():
            raise EngineError(f"{path} is missing, though config.json speaks of {mapping['world_size']} ranks.")
        try:
            ranks.append(load_file(path))
        except (SafetensorError, OSError) as error:
            raise EngineError(f"{path} is damaged or cut short ({error}); convert again.") from None
    return Checkpoint(config, ranks)


def write_rank(folder: Path, rank: int, tensors: dict[str, Any]) -> None:
    """The numpy arrays of a rank, as its file beside config.json."""
    path = folder / f"rank{rank}.safetensors"
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # it wraps what the disk said
        raise OSError(getattr(error, "errno", None) or errno.EIO, str(error), str(path)) from error
    path.chmod((folder / "config.json").stat().st_mode)  # safetensors makes it private


@contextlib.contextmanager
def fresh_folder(out: Path, need: int) -> Iterator[Path]:
    """A folder that becomes `out` when the block ends well, else goes away.

    need: bytes that will be written. An earlier checkpoint at `out` is replaced; anything else there stays untouched.
    Raises EngineError with one sentence, also for what the disk refuses inside the block.
    """
    out = out.absolute()
    try:
        _refuse_other_content(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out.parent).free
        if free < need:
            raise EngineError(f"{out} will take {need / 1e9:.2f} GB, and its disk has {free / 1e9:.2f} GB left.")
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.partial-", dir=out.parent) as scratch:
            made = Path(scratch) / "checkpoint"
            made.mkdir()
            yield made
            if out.exists():
                out.rename(Path(scratch) / "earlier")
            made.rename(out)
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        raise EngineError(f"{out} cannot be written: {reason}.") from error


def _refuse_other_content(out: Path) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir() or out.is_symlink():
        raise EngineError(f"{out} is a file or a link; name another place for the checkpoint.")
    foreign = sorted(p.name for p in out.iterdir() if not _OURS.fullmatch(p.name))
    config, rank = out / "config.json", out / "rank0.safetensors"
    if rank.exists() and config.exists() and config.stat().st_mtime > rank.stat().st_mtime + 1:
        raise EngineError(f"{config} was edited after the conversion; move it away, or name another folder.")
    if not foreign and (out / "config.json").exists():
        with contextlib.suppress(EngineError):  # half a file of ours
            foreign = [] if "mapping" in read_json(out / "config.json") else ["a config.json of something else"]
    if foreign:
        raise EngineError(f"{out} holds something else ({foreign[0]}{', …' * (len(foreign) > 1)}); name a new folder.")
