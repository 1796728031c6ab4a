"""`course convert` and `course engine …`: each command leaves the work to a module that it imports only then."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

app = typer.Typer(no_args_is_help=True, help="TensorRT-LLM engines: versions, commands, memory, what is in them.")
FLAGS_OF_ANOTHER = {"allow_extra_args": True, "ignore_unknown_options": True}  # flags as NVIDIA's programs name them
HONOURED = ("--model_dir", "--output_dir", "--dtype", "--tp_size", "--pp_size", "--use_weight_only", "--workers",
            "--weight_only_precision", "--load_model_on_cpu", "--load_by_shard", "--log_level")  # fmt: skip
Json = Annotated[bool, Option("--json", help="Print machine-readable JSON.")]
Version = Annotated[str, Option("--trtllm", help="Version of TensorRT-LLM, 0.9.0 to 1.3.0rc20.")]


def convert(context: typer.Context) -> None:
    """A Hugging Face model as a TensorRT-LLM checkpoint, with the flags of NVIDIA's convert_checkpoint.py. No GPU.

    --model_dir DIR_OR_NAME --output_dir DIR [--dtype auto|float16|bfloat16|float32] [--tp_size N]
    [--use_weight_only --weight_only_precision int8|int4]
    """
    from engines import EngineError, flags, versions
    from servinglab import assets

    try:
        from engines import convert as converter
    except ModuleNotFoundError as error:
        from servinglab.assets.catalogue import missing_package

        raise missing_package(error) from error
    trtllm = versions.containers()[0].trtllm
    given = dict(flags.pairs(context.args))
    flags.check("llama/convert_checkpoint.py", trtllm, given.items())  # what no converter of NVIDIA has
    if other := next((name for name in given if name not in HONOURED), None):
        raise EngineError(
            f"{other} is a flag of NVIDIA's converter that the course's own does not honour: leave it out."
        )
    if int(given.get("--pp_size") or 1) > 1:
        raise EngineError("--pp_size above 1 is not honoured here: cut the model with --tp_size.")
    if "--model_dir" not in given:
        raise EngineError("convert needs --model_dir, the folder of a Hugging Face model (or a name such as smollm2).")
    source = assets.resolve(given["--model_dir"])
    precision = given.get("--weight_only_precision") or "int8"
    made = converter.convert(
        source,
        Path(given.get("--output_dir", "tllm_checkpoint")),
        tp_size=int(given.get("--tp_size", 1)),
        dtype=converter.native_dtype(source) if given.get("--dtype", "auto") == "auto" else given["--dtype"],
        weight_only=precision if "--use_weight_only" in given else None,
    )
    for path in sorted(made.glob("rank*.safetensors"), key=lambda p: int(p.stem[4:])):
        typer.echo(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    command = shlex.join(["--checkpoint_dir", str(made), "--output_dir", f"{made}-engine"])
    typer.echo(f"next: course build {command}")
    typer.echo(f"or, on a GPU, with TensorRT-LLM up to {versions.LAST_WORKFLOW}: trtllm-build {command}")


@app.command("versions")
def list_versions(
    driver: Annotated[str | None, Option(help="What is the newest for this NVIDIA driver, such as 570.124.06?")] = None,
    as_json: Json = False,
) -> None:
    """List NVIDIA's containers: which TensorRT-LLM, TensorRT and CUDA they hold, and the driver they need."""
    from course import engine_tables as tables
    from engines import versions

    known, best = versions.containers(), versions.newest_for(driver) if driver else None
    if as_json:
        rows = [asdict(c) | {"image": c.image, "generation": c.generation} for c in known]
        found = {"containers": rows}
        _print_json(found | ({"driver": driver, "newest": best.tag if best else None} if driver else {}))
    else:
        tables.show_versions(known, best, driver)


@app.command(context_settings=FLAGS_OF_ANOTHER)
def recipe(
    context: typer.Context,
    name: Annotated[str, Argument(help="A recipe, such as gpt2-medium, llama-7b-tp4 or smollm2.")],
    trtllm: Version = "1.2.1",
    tp_size: Annotated[int | None, Option(min=1, help="GPUs that every layer is cut over.")] = None,
    dtype: Annotated[str | None, Option(help="float16, bfloat16 or float32.")] = None,
    weight_only: Annotated[str | None, Option(help="Weights of the linear layers: int8 or int4.")] = None,
    explain: Annotated[bool, Option("--explain", help="Say what every flag does.")] = False,
    as_json: Json = False,
) -> None:
    """Print the commands from a model to an engine; any other flag goes to trtllm-build. `| sh -e` runs them."""
    from course import engine_tables as tables
    from engines import flags, recipes

    extra = dict(flags.pairs(context.args))
    made = recipes.recipe(name, trtllm=trtllm, tp_size=tp_size, dtype=dtype, weight_only=weight_only, extra=extra)
    if as_json:
        _print_json(made.as_dict() | ({"flags": made.explain()} if explain else {}))
    else:
        tables.show_recipe(made, explain)


@app.command()
def estimate(
    model: Annotated[str, Argument(help="A model of the recipes, such as gpt2-medium, or a folder with config.json.")],
    dtype: Annotated[str | None, Option(help="float16, bfloat16 or float32.")] = None,
    kv_dtype: Annotated[str | None, Option(help="Precision of the KV cache: that of dtype, int8 or fp8.")] = None,
    weight_only: Annotated[str | None, Option(help="Weights of the linear layers: int8 or int4.")] = None,
    tp_size: Annotated[int | None, Option(help="GPUs that share every layer.")] = None,
    max_batch_size: Annotated[int | None, Option(help="Sequences at the same time.")] = None,
    max_seq_len: Annotated[int | None, Option(help="Tokens of one sequence, prompt and answer.")] = None,
    max_num_tokens: Annotated[int | None, Option(help="Tokens in one step.")] = None,
    max_beam_width: Annotated[int | None, Option(help="Beams of a sequence.")] = None,
    tokens_per_block: Annotated[int | None, Option(help="Tokens in a block of the KV cache.")] = None,
    gather_context_logits: Annotated[bool, Option(help="Keep the logits of prompt tokens.")] = False,
    gpu: Annotated[str | None, Option(help="A card, such as 24gb, rtx-4090 or h100: does it fit?")] = None,
    free_fraction: Annotated[float, Option(help="kv_cache_free_gpu_mem_fraction: share of what is free then.")] = 0.9,
    as_json: Json = False,
) -> None:
    """Say how much GPU memory an engine takes, part by part, before it is built. Needs no GPU."""
    from course import engine_tables as tables
    from engines import memory

    options = {"dtype": dtype, "kv_dtype": kv_dtype, "weight_only": weight_only, "tp_size": tp_size,
               "max_batch_size": max_batch_size, "max_seq_len": max_seq_len, "max_num_tokens": max_num_tokens,
               "max_beam_width": max_beam_width, "tokens_per_block": tokens_per_block,
               "gather_context_logits": gather_context_logits or None}  # fmt: skip
    found = memory.estimate(model, gpu=gpu, kv_cache_free_gpu_mem_fraction=free_fraction, **options)
    _print_json(asdict(found)) if as_json else tables.show_estimate(found)


@app.command()
def check(
    folder: Annotated[Path, Argument(metavar="DIR", help="An engine folder.")],
    container: Annotated[
        str | None, Option(help="Compare with this container, such as 26.07; with what is installed when left out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say why an engine will not run on this machine. Exit code 1 when it will not."""
    from engines.compatibility import Machine, incompatibility
    from engines.folder import read

    if not as_json:
        read(folder)  # what is no engine is an error, not an answer
    machine = Machine.here(container)
    reason = incompatibility(folder, machine)
    if as_json:
        _print_json({"runs": reason is None, "reason": reason, "machine": asdict(machine)})
    else:
        typer.echo(reason or f"{folder}: no reason is known why it should not run here.")
    if reason:
        raise typer.Exit(1)


@app.command()
def inspect(
    path: Annotated[Path, Argument(help="An engine folder, or a TensorRT-LLM checkpoint.")],
    as_json: Json = False,
) -> None:
    """Show what an engine is: plugins, limits, precision, sizes, build options."""
    from course import engine_tables as tables
    from engines import inspection

    found = inspection.inspect(path)
    _print_json(found) if as_json else tables.show_inspection(found)


@app.command()
def diff(
    a: Annotated[Path, Argument(metavar="A", help="An engine folder.")],
    b: Annotated[Path, Argument(metavar="B", help="Another one.")],
    as_json: Json = False,
) -> None:
    """Show what two builds differ in, the most important first."""
    from course import engine_tables as tables
    from engines import inspection

    found = inspection.diff(a, b)
    _print_json([asdict(d) for d in found]) if as_json else tables.show_differences(found, str(a), str(b))


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, default=str, ensure_ascii=False))
