"""The exact commands from a model on the Hugging Face hub to an engine, for each version of TensorRT-LLM (notebook 02).

What is built stands in data/recipes.toml, how a version spells it in flags.toml. Paths are relative to the folder that
the commands run in.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from engines import flags, one_of
from engines.footprint import from_config
from engines.memory import recipe_model
from engines.versions import EXAMPLES_ROOT, FOLDERS, converter, require_workflow, table, version

NAMES = tuple(table("recipes"))
Args = list[tuple[str, "str | None"]]


@dataclass(frozen=True)
class Command:
    """One program call. head: the words before the flags. args: (flag, value), None where a flag takes no value.

    writes: the folder that comes out.
    """

    program: str
    head: tuple[str, ...]
    args: Args
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
    """A model, a version and a split, with the three commands that make its engine: download, convert, build."""

    name: str
    family: str
    trtllm: str
    hub: str
    dtype: str
    tp_size: int
    weight_only: str | None
    commands: list[Command]
    notes: list[str] = field(default_factory=list)

    def explain(self) -> list[dict[str, str]]:
        """A row {program, flag, value, explain} for every flag of every command."""
        return [
            {"program": c.program, "flag": name, "value": value or "",
             "explain": flags.explain(c.program, name, self.trtllm)}
            for c in self.commands for name, value in c.args
        ]  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        commands = [asdict(c) | {"words": c.words(), "text": c.text()} for c in self.commands]
        return vars(self) | {"commands": commands, "engine_dir": self.commands[-1].writes}


def recipe(
    name: str,
    *,
    trtllm: str = "1.2.1",
    tp_size: int | None = None,
    dtype: str | None = None,
    weight_only: str | None = None,
    extra: Mapping[str, str | None] | None = None,
) -> Recipe:
    """The commands for one of NAMES: download, convert, build.

    trtllm: a version from 0.9.0 on. tp_size: GPUs that every layer is cut over. dtype: float16, bfloat16 or float32.
    weight_only: "int8" or "int4". extra: flags of trtllm-build as this version spells them, {flag: value or None},
    which win over the recipe's own. Raises EngineError with one sentence for what this version or the model cannot do.
    """
    one_of("a recipe's name", name, NAMES)
    require_workflow(trtllm)
    row = table("recipes")[name]
    base = row.get("same_as", name)
    model, family = table("recipes")[base], table("recipes")[base]["family"]
    tp_size, dtype = tp_size or row.get("tp_size", 1), dtype or model["dtype"]
    shape = from_config(recipe_model(base)[0], base)
    shape.check(tp_size)

    slug = "-".join(filter(None, [dtype, weight_only, f"tp{tp_size}"]))
    source, checkpoint, engine = f"checkpoints/{base}/hf", f"checkpoints/{base}/{slug}", f"engines/{base}/{slug}"
    script = f"{EXAMPLES_ROOT}/{converter(family, trtllm)}"
    build = [("--checkpoint_dir", checkpoint), ("--output_dir", engine), *_plugins(family, dtype, trtllm)]
    build += [*_limits(model["limits"], trtllm), *([("--workers", str(tp_size))] if tp_size > 1 else [])]
    given = dict(build) | dict(extra or {})
    convert = _convert(family, source, checkpoint, dtype, tp_size, weight_only)
    commands = [
        _download(model, source, trtllm),
        Command(f"{FOLDERS[family]}/convert_checkpoint.py", ("python3", script), convert, checkpoint),
        Command("trtllm-build", ("trtllm-build",), list(given.items()), engine),
    ]
    notes = [caution for command in commands for caution in flags.check(command.program, trtllm, command.args)]
    if warning := shape.beyond(max(int(given.get(f"--max_{what}_len") or 0) for what in ("seq", "input"))):
        notes.append(warning)
    if "--max_batch_size" not in given:
        default = flags.known("trtllm-build", trtllm)["--max_batch_size"].default_for(trtllm)
        notes.append(
            f"max_batch_size is not set, so trtllm-build {trtllm} takes its default, {default}; set what you need, for "
            f"the server keeps memory for the logits of as many requests."
        )
    if model.get("gated"):
        notes.insert(0, f"The weights of {model['hub']} are gated: accept the licence on its page, then set HF_TOKEN.")
    if family == "gemma":
        needs = f"{script.rpartition('/')[0]}/requirements.txt"
        notes.append(f"The converter imports packages that a container may lack: pip install -r {needs}")
    return Recipe(
        name=name, family=family, trtllm=trtllm, hub=model["hub"], dtype=dtype, tp_size=tp_size,
        weight_only=weight_only, commands=commands, notes=notes,
    )  # fmt: skip


def _download(model: Mapping[str, Any], source: str, trtllm: str) -> Command:
    # huggingface_hub 0.34 renamed its program; containers from 1.1 on hold a newer one.
    program = "hf" if version(trtllm) >= version("1.1.0") else "huggingface-cli"
    head = (program, "download", model["hub"], *model.get("files", ()))
    exclude = [("--exclude", model["exclude"])] if "exclude" in model else []
    return Command(program, head, [*exclude, ("--local-dir", source)], source)


def _convert(family: str, source: str, out: str, dtype: str, tp_size: int, weight_only: str | None) -> Args:
    if family == "gemma":
        args = [("--ckpt-type", "hf"), ("--model-dir", source), ("--dtype", dtype), ("--world-size", str(tp_size))]
        quantise = [("--use-weight-only-with-precision", weight_only)] if weight_only else []
        return [*args, *quantise, ("--output-model-dir", out)]
    args = [("--model_dir", source), ("--output_dir", out), ("--dtype", dtype)]
    args += [("--tp_size", str(tp_size)), ("--workers", str(tp_size))] if tp_size > 1 else []
    return args + ([("--use_weight_only", None), ("--weight_only_precision", weight_only)] if weight_only else [])


def _plugins(family: str, dtype: str, trtllm: str) -> Args:
    if family == "gemma":
        if "auto" in flags.known("trtllm-build", trtllm)["--gemm_plugin"].choices_for(trtllm):
            return [("--gemm_plugin", "auto")]
        return [("--gemm_plugin", dtype), ("--gpt_attention_plugin", dtype)]  # before 0.11 nothing follows the dtype
    fmha = [("--context_fmha", "enable")] if family == "llama" else []
    return [("--gpt_attention_plugin", dtype), *fmha, ("--gemm_plugin", dtype), ("--remove_input_padding", "enable")]


def _limits(limits: Mapping[str, Any], trtllm: str) -> Args:
    """The limits as flags of this version: two had another name and another meaning in older ones."""
    known, args = flags.known("trtllm-build", trtllm), []
    for key, value in limits.items():
        if key == "kv_cache_type" and "--kv_cache_type" not in known:
            args.append(("--paged_kv_cache", "enable" if value == "paged" else "disable"))
        elif key == "max_seq_len" and "--max_seq_len" not in known:  # the answer alone
            args.append(("--max_output_len", str(value - limits["max_input_len"])))
        else:
            args.append((f"--{key}", str(value)))
    return args
