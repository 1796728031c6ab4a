"""The `course` command. Each command says what to do and leaves the work to a module that it imports only then."""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from course import checkout
from course.engine_cli import FLAGS_OF_ANOTHER, build, convert
from course.engine_cli import app as engine
from engines import EngineError
from servinglab.errors import CourseError
from servinglab.lane import spare_the_proxy

ABOUT = "An executable course on serving language models with TensorRT-LLM and Triton."
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=ABOUT)
repo = typer.Typer(no_args_is_help=True, help="Build and check model repositories.")
app.add_typer(repo, name="repo")
app.add_typer(engine, name="engine")
with contextlib.suppress(CourseError):  # those for a class are there in a checkout only
    app.add_typer(checkout.tool("classroom").app)
app.command("convert", context_settings=FLAGS_OF_ANOTHER)(convert)
app.command("build", context_settings=FLAGS_OF_ANOTHER)(build)

Precision = Annotated[str | None, Option(help="Weights: fp32 (exact), int4 (fast on CPUs) or bf16 (for GPUs).")]
_debug = _interrupted = False


@app.callback()
def options(debug: Annotated[bool, Option(help="Show the traceback of an error.")] = False) -> None:
    global _debug
    _debug = debug


@app.command()
def doctor() -> None:
    """Show what this machine can run, and the cure for what it cannot. Changes nothing."""
    from course import doctor, report

    lines = doctor.examine()
    lanes = doctor.lanes(lines)
    report.show_doctor(lines, lanes)
    if all(lanes.values()):
        raise typer.Exit(1)


@app.command("list")
def list_notebooks() -> None:
    """List the notebooks."""
    from course import manifest, report

    rows = [(n.id, n.minutes, ", ".join(n.lanes), ", ".join(n.needs), n.title) for n in manifest.load().notebooks]
    report.show(("id", "minutes", "lanes", "needs", "title"), rows)


@app.command()
def run(
    ids: Annotated[list[str] | None, Argument(help="Notebook ids or numbers, such as 05; all when left out.")] = None,
    lane: Annotated[str | None, Option(help="embedded, trtllm, or a server: grpc://HOST:PORT.")] = None,
    parameter: Annotated[list[str] | None, Option("-p", metavar="NAME=VALUE", help="A notebook's parameter.")] = None,
    parameter_set: Annotated[str | None, Option("--set", help="A parameter set of course.toml.")] = None,
    out: Annotated[Path | None, Option(help="Folder for the results; build/ of the course when left out.")] = None,
    timeout: Annotated[float | None, Option(min=1, help="Seconds a notebook may take.")] = None,
) -> None:
    """Execute notebooks; results, pages and an index go to build/. Exit code 1 when one of them fails."""
    from course import doctor, manifest, report, runner
    from servinglab.lane import resolve_lane

    loaded = manifest.load()
    chosen = loaded.select(ids)
    if not ids and not lane and (others := [n.id for n in chosen if resolve_lane() not in n.lanes]):
        typer.echo(f"left out, because they do not run in lane {resolve_lane()}: {', '.join(others)}")
        chosen = [n for n in chosen if n.id not in others]
    overrides = manifest.parse_assignments([*(parameter or []), *([f"lane={lane}"] if lane else [])], chosen)
    values = {n.id: n.values(overrides[n.id], parameter_set) for n in chosen}  # refused here, before anything runs
    if any(v.get("lane") == "trtllm" for v in values.values()):
        doctor.require_trtllm()
    folder = (out or loaded.root / "build").resolve()
    runner.require_writable(folder)
    runner.require_results(folder, loaded)
    folder.mkdir(parents=True, exist_ok=True)
    pages, results = checkout.tool("site/run_pages"), []
    try:
        with contextlib.ExitStack() as stack, report.progress() as (at_cell, at_end):
            running = runner.run_all(chosen, folder, values, timeout=timeout, on_progress=at_cell)
            for result in stack.enter_context(contextlib.closing(running)):
                results.append(result)
                with runner.writing:
                    pages.page(folder / f"{result.id}.ipynb")
                at_end(result)
    except KeyboardInterrupt:
        typer.echo(f"stopped; what has finished is in {folder / 'index.html'}", err=True)
        raise
    finally:  # after Ctrl-C too, the table is of what has finished, and the index of the pages that are there
        known = {r.id: r for r in [*runner.earlier(folder), *results]}  # a run of one notebook keeps the others' pages
        everything = [known[n.id] for n in loaded.notebooks if n.id in known]
        runner.save(everything, folder)
        index = pages.index(loaded, everything, folder)
        ended = [r for r in everything if r in results]
        rows = [(r.id, f"{r.seconds:.1f}", report.status(r.status), r.error) for r in ended]
        report.show(("notebook", "seconds", "status", ""), rows)
    report.say(f"pages: {index}")
    if (yours := folder / "yours").is_dir():
        typer.echo(f"notebooks that you had changed in {folder.name} are in {yours}")
    if any(r.status != "passed" for r in results):
        raise typer.Exit(1)


@app.command()
def fetch(
    names: Annotated[list[str] | None, Argument(help="Model names; those of the course when left out.")] = None,
) -> None:
    """Bring weights into the cache and prepare them: once, resumable, checksums verified."""
    from course import manifest
    from servinglab import assets

    loaded = manifest.load()
    served = [n for n in loaded.notebooks if "smollm2" in n.needs]
    precisions = {str(n.values(set_name=s.name).get("precision", "fp32")) for n in served for s in n.sets}
    for name in names or loaded.models():
        assets.prepare(name, sorted(precisions) if name.startswith("smollm2") else (), whole=True)
        typer.echo(f"{name}: ready")


@app.command()
def models() -> None:
    """List the models in the cache and the labs' data sets: where, how large, under which licence."""
    from course import report
    from servinglab import assets

    report.show_models(assets.cached(), assets.datasets(), assets.cache_dir(), Path(__file__).resolve().parents[2])


@app.command()
def serve(
    folder: Annotated[Path, Argument(metavar="DIR", help="A model repository, or the folder that `repo build` made.")],
    lane: Annotated[str, Option(help="embedded, or trtllm inside NVIDIA's container.")] = "embedded",
    http_port: Annotated[int | None, Option(help="Port for HTTP; a free one, or 8000 for trtllm.")] = None,
    grpc_port: Annotated[int | None, Option(help="Port for gRPC; a free one, or 8001 for trtllm.")] = None,
    metrics_port: Annotated[int | None, Option(help="Port for metrics; a free one, or 8002 for trtllm.")] = None,
    model: Annotated[list[str] | None, Option(help="Load only this model; may be given more than once.")] = None,
    timeout: Annotated[float | None, Option(min=1, help="Seconds until every model must be ready.")] = None,
    world_size: Annotated[int | None, Option(help="trtllm: MPI ranks, tp × pp of the engine; read from it.")] = None,
    all_interfaces: Annotated[bool, Option("--all-interfaces", help="trtllm: 0.0.0.0, inside a container.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="trtllm: print the command, start nothing.")] = False,
) -> None:
    """Serve a model repository until Ctrl-C."""
    from course import serving

    if lane not in ("embedded", "trtllm"):
        raise CourseError(f"There is no lane {lane!r}: use embedded or trtllm.")
    own = {"--world-size": world_size, "--all-interfaces": all_interfaces, "--dry-run": dry_run}
    wrong = [name for name, value in own.items() if value] if lane == "embedded" else ["--model"] if model else []
    if wrong:
        raise CourseError(f"{wrong[0]} is no option of the lane {lane}.")
    ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
    serving.serve(folder, lane, typer.echo, models=model, world_size=world_size, all_interfaces=all_interfaces,
                  dry_run=dry_run, ports=ports, timeout=timeout)  # fmt: skip


@app.command()
def ask(
    context: typer.Context,
    prompt: Annotated[str, Argument(help="What to ask.")],
    stream: Annotated[bool, Option(help="Show the answer as it is made, or all of it at its end.")] = True,
    temperature: Annotated[float | None, Option(help="Above 1 flattens; needs top-k or top-p.")] = None,
    top_k: Annotated[int | None, Option(help="Choose among this many most likely tokens; 1 is greedy.")] = None,
    top_p: Annotated[float | None, Option(help="Choose among the likeliest tokens of this total probability.")] = None,
    seed: Annotated[int | None, Option(help="Another seed gives another answer; the default is always 0.")] = None,
    max_tokens: Annotated[int, Option(help="End the answer after so many tokens.")] = 128,
    precision: Precision = None,
    model: Annotated[str, Option(help="The BLS model or the ensemble of a deployment.")] = "tensorrt_llm_bls",
    raw: Annotated[bool, Option("--raw", help="Send the prompt as it is, without the chat template.")] = False,
) -> None:
    """Ask the model one question. Uses the server of `course serve`, else starts one and stops it again."""
    from course import ask as asking

    pieces: list[str] = []

    def write(text: str) -> None:
        pieces.append(text)
        typer.echo(text, nl=False)

    try:
        asking.ask(write=write, tell=lambda text: typer.echo(text, err=True), **context.params)
    finally:
        typer.echo(nl=bool(pieces))  # what comes next, an error or a prompt, begins a line


@repo.command("build")
def repo_build(
    out: Annotated[Path, Option(help="Folder to build in: model_repository and _assets.")] = Path("build/serving"),
    precision: Precision = "fp32",
    tokenizer_dir: Annotated[Path | None, Option(help="Tokenizer folder; the default model's when left out.")] = None,
    engine_dir: Annotated[Path | None, Option(help="Engine folder; the default model's when left out.")] = None,
    generation: Annotated[str | None, Option(help="Tensors: new (0.20 and later), old (0.19), 1.1.")] = None,
    setting: Annotated[
        list[str] | None,
        Option("-p", metavar="NAME=VALUE", help="decoupled=false, or any field of DeploymentSpec or of tensorrt_llm."),
    ] = None,
) -> None:
    """Write the five models of a deployment and what they need."""
    from pydantic import TypeAdapter, ValidationError

    from course import runner
    from servinglab.repository import DeploymentSpec, build_default

    chosen = {"tokenizer_dir": tokenizer_dir, "engine_dir": engine_dir, "generation": generation}
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    for name, text in _key_values(setting or []).items():
        if name not in DeploymentSpec.model_fields:
            given.setdefault("parameters", {})[name] = text
            continue
        try:
            given[name] = TypeAdapter(DeploymentSpec.model_fields[name].annotation).validate_strings(text)
        except ValidationError as error:
            raise CourseError(f"{name}: {error.errors()[0]['msg']}, found {text!r}.") from None
    runner.require_writable(out)
    built = build_default(out, precision=precision, **given)
    typer.echo(f"built {built}")
    if (yours := built.parent / "yours").is_dir():
        typer.echo(f"files that you had changed in it are in {yours}")
    typer.echo(f"next: course repo lint {built}, course serve {built}")


@repo.command("fill")
def repo_fill(
    target: Annotated[Path, Argument(metavar="DIR_OR_FILE", help="A copy of NVIDIA's models, or one config.pbtxt.")],
    assignments: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]…", help="MODEL/KEY=VALUE is for the file in that folder only.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would be filled.")] = False,
) -> None:
    """Fill every config.pbtxt under a folder, all files or none. Exit code 1 when something is missing."""
    from servinglab.repository import fill_repository

    for path, groups in fill_repository(target, _key_values(assignments or []), write=not dry_run).items():
        typer.echo(path)
        for group, names in zip(("filled", "left"), groups, strict=True):
            typer.echo(f"  {group:6} {', '.join(names)}" if names else "", nl=bool(names))
    typer.echo("nothing written (--dry-run)" if dry_run else f"next: course repo lint {target}")


@repo.command("lint")
def repo_lint(folder: Annotated[Path, Argument(metavar="DIR", help="A model repository.")]) -> None:
    """Find what keeps a repository from loading or working: file, line, cure. Exit code 1 when there are errors."""
    from course import report
    from servinglab.repository import lint

    if not folder.is_dir():
        raise CourseError(f"{folder} is not a folder; give a model repository, such as build/serving/model_repository.")
    folder = folder / "model_repository" if (folder / "model_repository").is_dir() else folder
    findings = lint(folder)
    report.show_findings(findings, folder)
    if any(f.severity == "error" for f in findings):
        raise typer.Exit(1)


def _key_values(arguments: list[str]) -> dict[str, str]:
    """{key: value} of KEY=VALUE arguments; the value may hold anything, more equals signs too."""
    found: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key:
            raise CourseError(f"{argument!r} is not of the form KEY=VALUE; give one argument for each key.")
        if key in found:
            raise CourseError(f"{key} is given twice.")
        found[key] = value
    return found


def _leave(number: int, frame: object) -> None:
    """Being told to end, by kill or by a closed terminal, is Ctrl-C: servers and folders of ours are cleaned up."""
    raise SystemExit(128 + number)


def _interrupt(number: int, frame: object) -> None:
    """Ctrl-C; noted, because a library that is just being imported turns it into an error of its own."""
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


def main() -> None:
    """Entry point: an expected error is one line, anything else is a bug and keeps its traceback."""
    spare_the_proxy()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup
            signal.signal(number, _leave)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell, >&-
            setattr(sys, name, open(os.devnull, "w"))
        getattr(sys, name).reconfigure(errors="replace")  # a terminal without our characters
    for argument in sys.argv[1:]:
        if argument != argument.encode(errors="replace").decode():
            typer.echo(f"course: {ascii(argument)} is not UTF-8; give the file or folder another name.", err=True)
            sys.exit(2)
    try:
        app()
    except (CourseError, EngineError, OSError) as error:
        reason = str(error)
        if isinstance(error, OSError):  # a full disk, a folder of somebody else
            reason = f"{error.strerror}: {error.filename or 'the output'}" if error.strerror else ""
        if _debug or not reason:
            raise
        typer.echo(f"course: {reason}", err=True)
        sys.exit(1)
    except ImportError:
        if _debug or not _interrupted:
            raise
        sys.exit(130)


if __name__ == "__main__":
    main()
