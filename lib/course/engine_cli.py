"""`course convert`, `course build` and `course engine …`: each leaves the work to modules that it imports only then."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from course import checkout, report
from servinglab.root import module

app = typer.Typer(no_args_is_help=True, help="TensorRT-LLM engines: versions, commands, memory, what is in them.")
FLAGS_OF_ANOTHER = {"allow_extra_args": True, "ignore_unknown_options": True}  # flags as NVIDIA's programs name them
HONOURED = ("--model_dir", "--output_dir", "--dtype", "--tp_size", "--pp_size", "--use_weight_only", "--workers",
            "--weight_only_precision", "--load_model_on_cpu", "--load_by_shard", "--log_level")  # fmt: skip
Folder = Annotated[Path, Argument(help="The folder of an engine, or of a TensorRT-LLM checkpoint.")]


def convert(context: typer.Context) -> None:
    """A Hugging Face model as a TensorRT-LLM checkpoint, with the flags of NVIDIA's convert_checkpoint.py. No GPU.

    --model_dir DIR_OR_NAME --output_dir DIR [--dtype auto|float16|bfloat16|float32] [--tp_size N]
    [--use_weight_only --weight_only_precision int8|int4]
    """
    from engines import EngineError, config, families, flags, versions
    from servinglab import assets

    try:
        from engines import convert as converter
    except ModuleNotFoundError as error:
        from servinglab.assets.store import missing_package

        raise missing_package(error) from error
    given = dict(flags.pairs(context.args))
    flags.check("llama/convert_checkpoint.py", versions.NEWEST, given.items())  # what no converter of NVIDIA has
    if other := next((name for name in given if name not in HONOURED), None):
        raise EngineError(f"{other} is a flag of NVIDIA's converter that the course's does not honour: leave it out.")
    if int(given.get("--pp_size") or 1) > 1:
        raise EngineError("--pp_size above 1 is not honoured here: cut the model with --tp_size.")
    if "--model_dir" not in given:
        raise EngineError("convert needs --model_dir, the folder of a Hugging Face model (or a name such as smollm2).")
    source, precision = assets.resolve(given["--model_dir"]), given.get("--weight_only_precision") or "int8"
    made = converter.convert(
        source,
        Path(given.get("--output_dir", "tllm_checkpoint")),
        tp_size=int(given.get("--tp_size", 1)),
        dtype=converter.native_dtype(source) if given.get("--dtype", "auto") == "auto" else given["--dtype"],
        weight_only=precision if "--use_weight_only" in given else None,
    )
    for path in sorted(made.glob("rank*.safetensors"), key=lambda p: int(p.stem[4:])):
        typer.echo(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    architecture = config.read_json(made / "config.json")["architecture"]
    since = next(family.since for family in families.FAMILIES.values() if family.architecture == architecture)
    command = shlex.join(["--checkpoint_dir", str(made), "--output_dir", f"{made}-engine"])
    on_a_gpu = f"(on a GPU, TensorRT-LLM {since} to {versions.LAST_WORKFLOW}: trtllm-build)"
    typer.echo(f"next: course build {command}\n{on_a_gpu}")


def build(context: typer.Context) -> None:
    """A TensorRT-LLM checkpoint as an engine for this machine, with the flags of trtllm-build. No GPU.

    --checkpoint_dir DIR --output_dir DIR [--max_batch_size N] [--max_seq_len N] [--max_input_len N]
    [--max_beam_width N] [--gather_context_logits] [--gather_generation_logits] …

    Flags that change speed on a GPU have no effect here; others are refused by name. Ours alone: --weights q4_1.
    `course build site [--out DIR] [--run DIR]` makes the course's web site instead.
    """
    from engines import flags, versions

    if context.args[:1] == ["site"]:  # a tool of the checkout: what is installed as a package has no pages to show
        return checkout.tool("site/build_site").main(context.args[1:])
    given = [(name, value) for name, value in flags.pairs(context.args) if name != "--weights"]
    for caution in flags.check("trtllm-build", versions.NEWEST, given):
        typer.echo(caution, err=True)
    # The backend is a program like trtllm-build: nothing of it is imported here.
    command = module("reference_backend.build", *context.args)
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    raise typer.Exit(subprocess.run(command, env={**os.environ, "PYTHONPATH": path}).returncode)


@app.command("versions")
def list_versions(
    driver: Annotated[str | None, Option(help="What is the newest for this NVIDIA driver, such as 570.124.06?")] = None,
) -> None:
    """List NVIDIA's containers: which TensorRT-LLM, TensorRT and CUDA they hold, and the driver they need."""
    from engines import versions

    report.show_versions(versions.containers(), versions.newest_for(driver) if driver else None, driver)


@app.command(context_settings=FLAGS_OF_ANOTHER)
def recipe(
    context: typer.Context,
    name: Annotated[str, Argument(help="A recipe, such as gpt2-medium, llama-7b-tp4 or smollm2.")],
    trtllm: Annotated[
        str | None, Option("--trtllm", help="Version of TensorRT-LLM, 0.9.0 to 1.3.0rc20: the installed one, or 1.2.1.")
    ] = None,
    tp_size: Annotated[int | None, Option(min=1, help="GPUs that every layer is cut over.")] = None,
    dtype: Annotated[str | None, Option(help="float16, bfloat16 or float32.")] = None,
    weight_only: Annotated[str | None, Option(help="Weights of the linear layers: int8 or int4.")] = None,
    explain: Annotated[bool, Option("--explain", help="Say what every flag does.")] = False,
) -> None:
    """Print the commands from a model to an engine; any other flag goes to trtllm-build. `| sh -e` runs them."""
    from engines import flags, recipes, versions

    extra, trtllm = dict(flags.pairs(context.args)), trtllm or versions.here()
    made = recipes.recipe(name, trtllm=trtllm, tp_size=tp_size, dtype=dtype, weight_only=weight_only, extra=extra)
    report.show_recipe(made, explain)


@app.command()
def estimate(
    context: typer.Context,
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
) -> None:
    """Say how much GPU memory an engine takes, part by part, before it is built. Needs no GPU."""
    from engines import memory

    options = {name: None if value is False else value for name, value in context.params.items()}
    free_fraction = options.pop("free_fraction")
    report.show_estimate(memory.estimate(**options, kv_cache_free_gpu_mem_fraction=free_fraction))


@app.command()
def check(
    folder: Folder,
    container: Annotated[str | None, Option(help="Compare with this one, such as 26.07, not with here.")] = None,
) -> None:
    """Say why an engine will not run on this machine. Exit code 1 when it will not."""
    from engines.compatibility import Machine, incompatibility

    reason = incompatibility(folder, Machine.here(container))
    typer.echo(reason or f"{folder}: no reason is known why it should not run here.")
    if reason:
        raise typer.Exit(1)


@app.command()
def inspect(path: Folder) -> None:
    """Show what an engine is: plugins, limits, precision, sizes, build options."""
    from engines import inspection

    report.show_inspection(inspection.inspect(path))


@app.command()
def diff(a: Folder, b: Folder) -> None:
    """Show what two builds differ in, the most important first."""
    from engines import inspection

    report.show_differences(inspection.diff(a, b), str(a), str(b))
