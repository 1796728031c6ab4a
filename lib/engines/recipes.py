"""The exact commands from a model on the Hugging Face hub to an engine, for each version of TensorRT-LLM (notebook 02).

What is built stands in data/engine/recipes.toml, how a version spells it in flags.toml. Paths are relative to the
folder that the commands run in.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engines import EngineError, compass, flags
from engines.recipe_checks import (
    DTYPES,
    GATHER,
    LIMITS,
    WEIGHT_ONLY,
    cautions,
    check_limit_name,
    check_limits,
    check_split,
    one_of,
)
from servinglab.errors import did_you_mean

__all__ = ["DTYPES", "LIMITS", "NAMES", "WEIGHT_ONLY", "Command", "Recipe", "parse_limits", "recipe"]

NAMES = tuple(compass.table("recipes"))


@dataclass(frozen=True)
class Command:
    """One program call. head: the words before the flags. args: (flag, value), None where a flag takes no value.

    reads, writes: the folders that go in and the one that comes out.
    """

    program: str
    head: tuple[str, ...]
    args: list[tuple[str, str | None]]
    reads: tuple[str, ...]
    writes: str

    def words(self) -> list[str]:
        """The argument vector."""
        return [*self.head, *(word for pair in self.args for word in pair if word is not None)]

    def text(self) -> str:
        """The command for a shell, one flag a line."""
        lines = [shlex.join(self.head), *(shlex.join(w for w in pair if w is not None) for pair in self.args)]
        return " \\\n    ".join(lines)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model, a version and a split, with the commands that make its engine."""

    name: str
    family: str
    trtllm: str
    hub: str
    dtype: str
    tp_size: int
    pp_size: int
    weight_only: str | None
    commands: list[Command]
    notes: list[str] = field(default_factory=list)

    @property
    def source_dir(self) -> str:
        return self.commands[0].writes

    @property
    def checkpoint_dir(self) -> str:
        return self.commands[1].writes

    @property
    def engine_dir(self) -> str:
        return self.commands[2].writes

    def text(self) -> str:
        """Everything for a shell."""
        return "\n\n".join(command.text() for command in self.commands)

    def explain(self) -> list[dict[str, str]]:
        """A row {program, flag, value, explain} for every flag of every command."""
        return [
            {
                "program": command.program,
                "flag": name,
                "value": value or "",
                "explain": flags.explain(command.program, name, self.trtllm),
            }
            for command in self.commands
            for name, value in command.args
        ]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        names = ("name", "family", "trtllm", "hub", "dtype", "tp_size", "pp_size", "weight_only", "notes")
        commands = [
            {"program": c.program, "words": c.words(), "text": c.text(), "writes": c.writes} for c in self.commands
        ]
        return {name: getattr(self, name) for name in names} | {"engine_dir": self.engine_dir, "commands": commands}


def recipe(
    name: str,
    *,
    trtllm: str = "1.2.1",
    tp_size: int | None = None,
    pp_size: int = 1,
    dtype: str | None = None,
    weight_only: str | None = None,
    examples: str | None = None,
    extra: Mapping[str, str | None] | None = None,
    **limits: Any,
) -> Recipe:
    """The commands for one of NAMES: download, convert, build.

    trtllm: a version from 0.9.0 on. tp_size, pp_size: GPUs that a layer is cut over, and stages that layers are dealt
    to. dtype: one of DTYPES. weight_only: "int8" or "int4". examples: the examples folder of TensorRT-LLM; that of the
    containers when left out. extra: further flags of trtllm-build, {flag: value or None}. limits: LIMITS, lengths and
    counts in tokens and requests.

    Raises EngineError with one sentence for what this version, the model or the runtime cannot do.
    """
    if name not in NAMES:
        raise EngineError(f"There is no recipe {name!r}: there are {', '.join(NAMES)}.{did_you_mean(str(name), NAMES)}")
    compass.require_workflow(trtllm)
    row = compass.table("recipes")[name]
    base = row.get("same_as", name)
    model, family = compass.table("recipes")[base], compass.table("recipes")[base]["family"]
    tp_size = row.get("tp_size", 1) if tp_size is None else tp_size
    dtype = one_of("dtype", dtype or model["dtype"], DTYPES)
    if weight_only is not None:
        one_of("weight_only", weight_only, WEIGHT_ONLY)
    check_split(base, family, trtllm, tp_size, pp_size)
    limits = {**model["limits"], **{key: value for key, value in limits.items() if value is not None}}
    check_limits(limits, trtllm)

    slug = "-".join(filter(None, [dtype, weight_only, f"tp{tp_size}", f"pp{pp_size}" if pp_size > 1 else None]))
    source, checkpoint, engine = f"checkpoints/{base}/hf", f"checkpoints/{base}/{slug}", f"engines/{base}/{slug}"
    workers = limits.pop("workers", tp_size * pp_size)
    script = f"{examples or compass.examples_root()}/{compass.converter(family, trtllm)}"
    convert = _convert(family, source, checkpoint, dtype, tp_size, pp_size, weight_only, workers)
    build = [("--checkpoint_dir", checkpoint), ("--output_dir", engine), *_plugins(family, dtype, trtllm)]
    build += [*_build_limits(limits, trtllm), *([("--workers", str(workers))] if workers > 1 else [])]
    build += (extra or {}).items()
    program = f"{compass.FOLDERS[family]}/convert_checkpoint.py"
    commands = [
        _download(model, source, trtllm),
        Command(program, ("python3", script), convert, (source,), checkpoint),
        Command("trtllm-build", ("trtllm-build",), build, (checkpoint,), engine),
    ]
    notes = [caution for command in commands for caution in flags.check(command.program, trtllm, command.args)]
    notes += cautions(base, limits, trtllm)
    if model.get("gated"):
        notes.insert(0, f"The weights of {model['hub']} are gated: accept the licence on its page, then set HF_TOKEN.")
    if family == "gemma":
        needs = f"{script.rpartition('/')[0]}/requirements.txt"
        notes.append(f"The converter imports packages that a container may lack: pip install -r {needs}")
    return Recipe(
        name=name, family=family, trtllm=trtllm, hub=model["hub"], dtype=dtype, tp_size=tp_size, pp_size=pp_size,
        weight_only=weight_only, commands=commands, notes=notes,
    )  # fmt: skip


def parse_limits(pairs: Iterable[str]) -> dict[str, Any]:
    """Limits from texts such as "max_batch_size=16" and "gather_context_logits=true", as a command line gives them."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise EngineError(f"A limit is given as NAME=VALUE, not {pair!r}.")
        check_limit_name(key)
        if key in found:
            raise EngineError(f"The limit {key} is given twice.")
        number = int(text) if re.fullmatch(r"-?[0-9]{1,10}", text) else None
        found[key] = {"true": True, "false": False}.get(text.lower(), text if number is None else number)
    return found


def _download(model: Mapping[str, Any], source: str, trtllm: str) -> Command:
    # huggingface_hub 0.34 renamed its program; containers from 1.1 on hold a newer one.
    program = "hf" if compass.version(trtllm) >= compass.version("1.1.0") else "huggingface-cli"
    head = (program, "download", model["hub"], *model.get("files", ()))
    exclude = [("--exclude", model["exclude"])] if "exclude" in model else []
    return Command(program, head, [*exclude, ("--local-dir", source)], (), source)


def _convert(
    family: str, source: str, out: str, dtype: str, tp_size: int, pp_size: int, weight_only: str | None, workers: int
) -> list[tuple[str, str | None]]:
    if family == "gemma":
        args = [("--ckpt-type", "hf"), ("--model-dir", source), ("--dtype", dtype), ("--world-size", str(tp_size))]
        quantise = [("--use-weight-only-with-precision", weight_only)] if weight_only else []
        return [*args, *quantise, ("--output-model-dir", out)]
    args = [("--model_dir", source), ("--output_dir", out), ("--dtype", dtype)]
    for flag, count in (("--tp_size", tp_size), ("--pp_size", pp_size), ("--workers", workers)):
        args += [(flag, str(count))] if count > 1 else []
    return args + ([("--use_weight_only", None), ("--weight_only_precision", weight_only)] if weight_only else [])


def _plugins(family: str, dtype: str, trtllm: str) -> list[tuple[str, str]]:
    if family == "gemma":
        if "auto" in flags.known("trtllm-build", trtllm)["--gemm_plugin"].choices_for(trtllm):
            return [("--gemm_plugin", "auto")]
        # Before 0.11 nothing follows the dtype of the checkpoint.
        return [("--gemm_plugin", dtype), ("--gpt_attention_plugin", dtype)]
    fmha = [("--context_fmha", "enable")] if family == "llama" else []
    return [("--gpt_attention_plugin", dtype), *fmha, ("--gemm_plugin", dtype), ("--remove_input_padding", "enable")]


def _build_limits(limits: Mapping[str, Any], trtllm: str) -> list[tuple[str, str | None]]:
    known = flags.known("trtllm-build", trtllm)
    args: list[tuple[str, str | None]] = []
    for key, value in limits.items():
        if key in GATHER:
            args += [(f"--{key}", None)] if value else []
        elif key == "kv_cache_type" and "--kv_cache_type" not in known:
            if value == "disabled":
                raise EngineError(f"trtllm-build of TensorRT-LLM {trtllm} cannot build without a KV cache; 0.13.0 can.")
            args.append(("--paged_kv_cache", "enable" if value == "paged" else "disable"))
        elif key == "max_seq_len" and "--max_seq_len" not in known:
            longest = limits.get("max_input_len") or known["--max_input_len"].default_for(trtllm)
            if value <= longest:
                raise EngineError(
                    f"max_seq_len {value} leaves no room for an answer after prompts of up to {longest} tokens: "
                    f"choose a smaller max_input_len."
                )
            args.append(("--max_output_len", str(value - longest)))
        else:
            args.append((f"--{key}", str(value)))
    return args
