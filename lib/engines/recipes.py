"""The exact commands from a model on the Hugging Face hub to an engine, for each version of TensorRT-LLM (notebook 02).

What is built stands in data/recipes.toml, with which words in commands.toml, how a version spells limits in flags.toml.
Paths are relative to the folder that the commands run in.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from engines import EngineError, flags, one_of
from engines.families import FAMILIES, check_split
from engines.footprint import from_config
from engines.memory import recipe_model
from engines.versions import EXAMPLES_ROOT, at, converter, require_workflow, table, version

NAMES = tuple(table("recipes"))
Args = list[tuple[str, "str | None"]]


@dataclass(frozen=True)
class Command:
    """One program call. head: the words before the flags. writes: the folder that comes out."""

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


@dataclass(frozen=True)
class Recipe:
    """Download, convert, build, with this version of TensorRT-LLM. notes: what no command can do or say."""

    trtllm: str
    commands: list[Command]
    notes: list[str]

    def explain(self) -> list[dict[str, str]]:
        """A row {program, flag, value, explain} for every flag of every command."""
        return [
            {"program": c.program, "flag": name, "value": value or "",
             "explain": flags.explain(c.program, name, self.trtllm)}
            for c in self.commands for name, value in c.args
        ]  # fmt: skip


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
    model, own = recipe_model(name), table("recipes")[name]
    base, family = name if "hub" in own else own["same_as"], model["config"]["model_type"]
    tp_size, dtype = tp_size or model["tp_size"], dtype or model["dtype"]
    shape = from_config(model["config"], base)
    check_split(shape, tp_size, base)

    slug = "-".join(filter(None, [dtype, weight_only, f"tp{tp_size}"]))
    source, checkpoint, engine = f"checkpoints/{base}/hf", f"checkpoints/{base}/{slug}", f"engines/{base}/{slug}"
    of = {"checkpoint": checkpoint, "dtype": dtype, "tp_size": tp_size, "weight_only": weight_only}
    convert, build = steps(family, source, engine, model["limits"], trtllm=trtllm, extra=extra, **of)
    given, script = dict(build.args), convert.head[-1]
    hub = at(table("commands")["download"], trtllm)
    download = (hub, "download", model["hub"], *model.get("files", ()))
    exclude = [("--exclude", model["exclude"])] if "exclude" in model else []
    commands = [
        Command(hub, download, [*exclude, ("--local-dir", source)], source),
        convert,
        build,
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
    return Recipe(trtllm, commands, notes)


def steps(
    family: str, source: str, engine: str, limits: Mapping[str, Any], *, trtllm: str, checkpoint: str, dtype: str,
    tp_size: int = 1, weight_only: str | None = None, extra: Mapping[str, str | None] | None = None,
) -> tuple[Command, Command]:  # fmt: skip
    """convert_checkpoint.py and trtllm-build for a folder of the hub. family: "gpt2", "llama" or "gemma"; limits: of
    the engine, by their present names; the rest as in `recipe`."""
    script, words = f"{EXAMPLES_ROOT}/{converter(family, trtllm)}", table("commands")[family]
    of = {"source": source, "checkpoint": checkpoint, "dtype": dtype, "tp_size": tp_size, "weight_only": weight_only}
    line = words["convert"].replace("{split}", words["split"] if tp_size > 1 else "")
    line = line.replace("{quantise}", words["quantise"] if weight_only else "")
    convert = list(flags.pairs(word.format(**of) for word in line.split()))
    plugins = flags.pairs(word.format(**of) for word in at(words["build"], trtllm).split())
    build = [("--checkpoint_dir", checkpoint), ("--output_dir", engine), *plugins, *_limits(limits, trtllm)]
    build += [("--workers", str(tp_size))] if tp_size > 1 else []
    given = dict(build) | dict(extra or {})
    return (
        Command("/".join(script.split("/")[-2:]), ("python3", script), convert, checkpoint),
        Command("trtllm-build", ("trtllm-build",), list(given.items()), engine),
    )


def build_here(source: str, checkpoint: str, engine: str, dtype: str, weight_only: str | None = None) -> None:
    """Run both with the programs of this machine, NVIDIA's container, with the limits of the course's own model.

    Raises EngineError with the last lines of the program that failed.
    """
    family = json.loads(Path(source, "config.json").read_text(encoding="utf-8"))["model_type"]
    one_of(f"the model_type of {source}", family, FAMILIES)
    trtllm, limits = metadata.version("tensorrt_llm"), recipe_model("smollm2")["limits"]
    of = {"checkpoint": checkpoint, "dtype": dtype, "weight_only": weight_only}
    for command in steps(family, source, engine, limits, trtllm=trtllm, **of):
        words = [sys.executable if word == "python3" else word for word in command.words()]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if done.returncode:
            said = " / ".join(done.stdout.strip().splitlines()[-3:]) or "it said nothing"
            raise EngineError(f"{command.program} of TensorRT-LLM {trtllm} failed: {said}")


def _limits(limits: Mapping[str, Any], trtllm: str) -> Args:
    """The limits as flags of this version: two had another name and another meaning in older ones."""
    known, args = flags.known("trtllm-build", trtllm), []
    for key, value in limits.items():
        if value is True:
            # Where it is not there or deprecated, it needs no flag.
            if f"--{key}" in known and version(trtllm) < version(known[f"--{key}"].deprecated):
                args.append((f"--{key}", None))
        elif key == "kv_cache_type" and "--kv_cache_type" not in known:
            args.append(("--paged_kv_cache", "enable" if value == "paged" else "disable"))
        elif key == "max_seq_len" and "--max_seq_len" not in known:  # the answer alone
            args.append(("--max_output_len", str(value - limits["max_input_len"])))
        else:
            args.append((f"--{key}", str(value)))
    return args
