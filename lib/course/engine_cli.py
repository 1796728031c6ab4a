"""`course engine …`: each command says what to do and leaves the work to a module that it imports only then."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

app = typer.Typer(no_args_is_help=True, help="TensorRT-LLM checkpoints and engines: convert, estimate, build, inspect.")


@app.command()
def convert(
    source: Annotated[str, Argument(help="Folder with config.json and safetensors files, or a model name.")],
    out: Annotated[Path, Argument(help="Folder for the checkpoint; an earlier checkpoint there is replaced.")],
    tp_size: Annotated[int, Option(help="GPUs that share the model: ranks of tensor parallelism.")] = 1,
    dtype: Annotated[str, Option(help="float16, bfloat16 or float32.")] = "float16",
    weight_only: Annotated[str | None, Option(help="int8 or int4: what trtllm-build makes of the weights.")] = None,
    family: Annotated[str | None, Option(help="llama, gpt2 or gemma; read from config.json by default.")] = None,
) -> None:
    """Turn a Hugging Face checkpoint into a TensorRT-LLM checkpoint. Needs no GPU."""
    try:
        from engines import compass
        from engines import convert as converter
    except ModuleNotFoundError as error:
        from servinglab.assets.catalogue import missing_package

        raise missing_package(error) from error
    made = converter.convert(source, out, family=family, tp_size=tp_size, dtype=dtype, weight_only=weight_only)
    for path in sorted(made.glob("rank*.safetensors"), key=lambda p: int(p.stem[4:])):
        typer.echo(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    since = converter.oldest(json.loads((made / "config.json").read_text(encoding="utf-8")))
    last = compass.last_workflow()
    command = ["trtllm-build", "--checkpoint_dir", str(made), "--output_dir", f"{made}-engine"]
    typer.echo(f"next, with TensorRT-LLM {since} to {last}, the last that builds engines: {shlex.join(command)}")


Json = Annotated[bool, Option("--json", help="Print machine-readable JSON.")]
Version = Annotated[str, Option("--trtllm", help="Version of TensorRT-LLM, 0.9.0 to 1.3.0rc20.")]
Split = Annotated[int | None, Option(help="GPUs that every layer is cut over.")]
Stages = Annotated[int, Option(help="Groups of GPUs that the layers are dealt out to.")]
Dtype = Annotated[str | None, Option(help="float16, bfloat16 or float32.")]
WeightOnly = Annotated[str | None, Option(help="Weights of the linear layers: int8 or int4.")]
Examples = Annotated[str | None, Option(help="Examples folder of TensorRT-LLM; that of the container by default.")]
Limit = Annotated[list[str] | None, Option("-l", "--limit", metavar="NAME=VALUE", help="Such as max_batch_size=16.")]
RecipeName = Annotated[str, Argument(help="A recipe, such as gpt2-medium, llama-7b-tp4 or smollm2.")]


@app.command()
def versions(
    driver: Annotated[str | None, Option(help="What is the newest for this NVIDIA driver, such as 570.124.06?")] = None,
    as_json: Json = False,
) -> None:
    """List NVIDIA's containers: which TensorRT-LLM, TensorRT and CUDA they hold, and the driver they need."""
    from course import engine_listing as listing
    from engines import compass

    known, best = list(compass.containers()), compass.newest_for(driver) if driver else None
    if as_json:
        found = {"containers": [listing.container_row(c) for c in known]}
        _print_json(found | ({"driver": driver, "newest": best.tag if best else None} if driver else {}))
    else:
        listing.show_versions(known, best, driver)


@app.command()
def recipe(
    context: typer.Context,
    name: RecipeName,
    trtllm: Version = "1.2.1",
    tp_size: Split = None,
    pp_size: Stages = 1,
    dtype: Dtype = None,
    weight_only: WeightOnly = None,
    limit: Limit = None,
    examples: Examples = None,
    explain: Annotated[bool, Option("--explain", help="Say what every flag does.")] = False,
    as_json: Json = False,
) -> None:
    """Print the commands from a model to an engine, in the flags of one version of TensorRT-LLM. Runs nothing."""
    from course import engine_listing as listing

    made = _recipe(context)
    if as_json:
        _print_json(made.as_dict() | ({"flags": made.explain()} if explain else {}))
    else:
        listing.show_recipe(made, explain)


@app.command()
def build(
    context: typer.Context,
    name: RecipeName,
    workdir: Annotated[Path, Option(help="Folder for checkpoints, engines and logs.")] = Path("."),
    container: Annotated[str | None, Option(help="Container tag or image; found by version when left out.")] = None,
    trtllm: Version = "1.2.1",
    tp_size: Split = None,
    pp_size: Stages = 1,
    dtype: Dtype = None,
    weight_only: WeightOnly = None,
    limit: Limit = None,
    examples: Examples = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the commands and run nothing.")] = False,
) -> None:
    """Run a recipe: download, convert, build. Finished steps are not run again. Needs an NVIDIA GPU."""
    from engines import build as builder

    made = _recipe(context)
    for note in made.notes:
        typer.echo(f"# {note}")
    engine = builder.build(made, workdir, dry_run=dry_run, container=container, on_line=typer.echo)
    if not dry_run:
        typer.echo(f"engine: {engine}")


@app.command()
def estimate(
    model: Annotated[str, Argument(help="A model of the recipes, such as gpt2-medium, or a folder with config.json.")],
    dtype: Annotated[str | None, Option(help="float16, bfloat16 or float32.")] = None,
    kv_dtype: Annotated[str | None, Option(help="Precision of the KV cache: that of dtype, int8 or fp8.")] = None,
    weight_only: Annotated[str | None, Option(help="Weights of the linear layers: int8 or int4.")] = None,
    tp_size: Annotated[int | None, Option(help="GPUs that share every layer.")] = None,
    pp_size: Annotated[int | None, Option(help="GPUs that hold layers one after the other.")] = None,
    max_batch_size: Annotated[int | None, Option(help="Sequences at the same time.")] = None,
    max_seq_len: Annotated[int | None, Option(help="Tokens of one sequence, prompt and answer.")] = None,
    max_num_tokens: Annotated[int | None, Option(help="Tokens in one step.")] = None,
    max_beam_width: Annotated[int | None, Option(help="Beams of a sequence.")] = None,
    tokens_per_block: Annotated[int | None, Option(help="Tokens in a block of the KV cache.")] = None,
    gather_context_logits: Annotated[bool, Option(help="Keep the logits of prompt tokens.")] = False,
    gpu: Annotated[str | None, Option(help="A card, such as 24gb, rtx-4090 or h100: does it fit?")] = None,
    free_fraction: Annotated[float, Option(help="kv_cache_free_gpu_mem_fraction: share of what is free then.")] = 0.9,
    max_tokens: Annotated[int | None, Option(help="max_tokens_in_paged_kv_cache: most tokens in the cache.")] = None,
    as_json: Json = False,
) -> None:
    """Say how much GPU memory an engine takes, part by part, before it is built. Needs no GPU."""
    from course import engine_tables as tables
    from engines import memory

    found = memory.estimate(
        model, gpu=gpu, kv_cache_free_gpu_mem_fraction=free_fraction, max_tokens_in_paged_kv_cache=max_tokens,
        dtype=dtype, kv_dtype=kv_dtype, weight_only=weight_only, tp_size=tp_size, pp_size=pp_size,
        max_batch_size=max_batch_size, max_seq_len=max_seq_len, max_num_tokens=max_num_tokens,
        max_beam_width=max_beam_width, tokens_per_block=tokens_per_block,
        gather_context_logits=gather_context_logits or None,
    )  # fmt: skip
    _print_json(found.as_dict()) if as_json else tables.show_estimate(found)


@app.command()
def check(
    folder: Annotated[Path, Argument(metavar="DIR", help="An engine folder.")],
    container: Annotated[
        str | None, Option(help="Compare with this container, such as 26.07; with what is installed when left out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say why an engine will not run on this machine. Exit code 1 when it will not."""
    from engines.folder import Machine, read, refusal

    if not as_json:
        read(folder)  # what is no engine is an error, not an answer
    machine = Machine.here(container)
    reason = refusal(folder, machine)
    if as_json:
        _print_json({"runs": reason is None, "reason": reason, "machine": asdict(machine)})
    else:
        typer.echo(reason or f"{folder}: nothing speaks against running it here.")
    if reason:
        raise typer.Exit(1)


@app.command()
def inspect(
    path: Annotated[Path, Argument(help="An engine folder, a TensorRT-LLM checkpoint, or an engine file.")],
    as_json: Json = False,
) -> None:
    """Show what an engine is: plugins, limits, precision, sizes, build options."""
    from course import engine_tables as tables
    from engines import autopsy

    found = autopsy.inspect(path)
    _print_json(found) if as_json else tables.show_inspection(found)


@app.command()
def diff(
    a: Annotated[Path, Argument(metavar="A", help="An engine folder.")],
    b: Annotated[Path, Argument(metavar="B", help="Another one.")],
    as_json: Json = False,
) -> None:
    """Show what two builds differ in, the most important first."""
    from course import engine_tables as tables
    from engines import autopsy

    found = autopsy.diff(a, b)
    _print_json([asdict(d) for d in found]) if as_json else tables.show_differences(found, str(a), str(b))


def _recipe(context: typer.Context) -> Any:
    """The recipe that the options of `recipe` and `build` describe; both have all of these."""
    from engines import recipes

    names = ("name", "trtllm", "tp_size", "pp_size", "dtype", "weight_only", "examples")
    limits = recipes.parse_limits(context.params["limit"] or [])
    return recipes.recipe(**{name: context.params[name] for name in names}, **limits)


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, default=str, ensure_ascii=False))
