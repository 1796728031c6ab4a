"""Run the commands of a recipe, here or in NVIDIA's container, and again only what changed (notebook 02).

<workdir>/checkpoints/… engines/…     what the steps write, each with a stamp of the command and inputs it came from
<workdir>/….partial                   work in progress; renamed when it is whole
<workdir>/logs/NAME-N-PROGRAM.log     everything that a step printed
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from engines import EngineError, compass, examples
from engines.engine_folder import NOTE, record
from engines.machine import Machine
from engines.program import Place
from engines.recipes import Command, Recipe
from servinglab.assets.store import STAMP, read_stamp, stamp
from servinglab.keep import Keeper

_DRY = "--dry-run prints the commands for another machine"


def build(
    recipe: Recipe,
    workdir: str | Path,
    *,
    dry_run: bool = False,
    container: str | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Path:
    """Download, convert and build in `workdir`, and return the engine's folder. Finished steps are not run again.

    dry_run: hand the commands to on_line and run nothing. container: a tag such as "26.07" or an image; when left out,
    the programs on PATH, or else the newest container with the recipe's TensorRT-LLM. on_line: gets progress and
    everything that the programs print.

    A source folder that is there already and was not made here is taken as it is. Raises EngineError with one sentence
    when a program is missing or fails; then, and on Ctrl-C, no process and no half-written folder is left behind.
    """
    say = on_line or (lambda line: None)
    workdir = Path(workdir).absolute()
    place = _place(recipe, workdir, container)
    if dry_run:
        for command in recipe.commands:
            docker = f"{shlex.join(place.prefix())} \\\n    " if place.image else ""
            say(f"{docker}{command.text()}\n")
        return workdir / recipe.engine_dir
    _require(recipe, place)
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / ".build.lock").open("a") as lock:  # programs inherit it: it stays while one of them is left
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngineError(f"Another build runs in {workdir}: wait for it, or choose another folder.") from None
        for number, command in enumerate(recipe.commands, 1):
            _step(recipe, command, number, place, say, lock.fileno())
        _record(recipe, workdir / recipe.engine_dir)
    return workdir / recipe.engine_dir


def _record(recipe: Recipe, engine: Path) -> None:
    """Note the card beside a new engine: trtllm-build leaves it out, and `folder.refusal` wants to know."""
    if not (engine / NOTE).exists():
        with contextlib.suppress(PermissionError):  # a container may have made the folder as root
            record(engine, replace(Machine.here(), trtllm=recipe.trtllm))


def _place(recipe: Recipe, workdir: Path, container: str | None) -> Place:
    if container is None:
        here = shutil.which("trtllm-build") is not None
        return Place(workdir, None if here else compass.find(recipe.trtllm).image)
    try:
        known = compass.find(container)
    except EngineError:
        if "/" in container or ":" in container:  # an image of one's own
            return Place(workdir, container)
        raise
    if compass.version(known.trtllm) != compass.version(recipe.trtllm):
        raise EngineError(
            f"Container {known.tag} holds TensorRT-LLM {known.trtllm}, and the recipe is for {recipe.trtllm}: "
            f"choose one of the two."
        )
    return Place(workdir, known.image)


def _require(recipe: Recipe, place: Place) -> None:
    """Raise EngineError where the programs or the GPU are missing, or do not belong together."""
    if place.image and not shutil.which("docker"):
        raise EngineError(f"The build needs Docker, or else trtllm-build on PATH, and neither is here; {_DRY}.")
    if not shutil.which("nvidia-smi"):
        raise EngineError(f"No NVIDIA GPU is to be seen (nvidia-smi is missing), and trtllm-build needs one; {_DRY}.")
    if place.image:
        return
    script = place.workdir / recipe.commands[1].head[1]
    if not script.is_file():
        raise EngineError(f"There is no converter at {script}: name the examples folder of TensorRT-LLM (--examples).")
    try:
        wheel = metadata.version("tensorrt_llm")
    except metadata.PackageNotFoundError:
        wheel = recipe.trtllm
    if compass.version(wheel).public != compass.version(recipe.trtllm).public:
        raise EngineError(f"TensorRT-LLM {wheel} is installed and the recipe is for {recipe.trtllm}: --trtllm {wheel}.")
    if (found := examples.version_of(script)) and (sentence := examples.check(found, wheel, recipe.family)):
        raise EngineError(sentence)


def _step(recipe: Recipe, command: Command, number: int, place: Place, say: Callable[[str], None], lock: int) -> None:
    head = f"[{number}/{len(recipe.commands)}] {command.program}"
    final = place.workdir / command.writes
    digest = _digest(recipe, command, place.workdir)
    found = read_stamp(final)
    if found and found.get("recipe") == digest:
        say(f"{head}: {command.writes} is there already")
        return
    if not command.reads and (final / "config.json").exists() and not (final / STAMP).exists():
        say(f"{head}: {command.writes} is there already and was not made here; it is taken as it is")
        return
    partial = final.with_name(f"{final.name}.partial")
    if command.reads:  # a download goes on where it stopped
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, exist_ok=True)
    log = place.workdir / "logs" / f"{recipe.name}-{number}-{command.program.replace('/', '-')}.log"
    log.parent.mkdir(exist_ok=True)
    say(f"{head}: {command.writes} (log: {log.relative_to(place.workdir)})")
    started = time.monotonic()
    words = [word if word != command.writes else f"{command.writes}.partial" for word in command.words()]
    try:
        code = place.run(_installed(words, place), log, say, keep=(lock,))
        if code:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            raise EngineError(f"{head} {how}; its log {log} ends with: {_last_line(log)}")
        _check_whole(recipe, command, partial, log)
        stamp(partial, digest, command=command.words(), trtllm=recipe.trtllm)
        _publish(partial, final, say)
    except BaseException:
        if command.reads:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    say(f"{head}: done in {time.monotonic() - started:.1f} s")


def _digest(recipe: Recipe, command: Command, workdir: Path) -> str:
    """What decides whether a step must run again: its command, the version, and the files that it reads."""
    if not command.reads:  # a download is the same for every version, whatever the program is called
        return hashlib.sha256(json.dumps(command.words()[1:]).encode()).hexdigest()
    inputs = [
        (str(path.relative_to(workdir)), path.stat().st_size, path.stat().st_mtime_ns)
        for folder in command.reads
        for path in sorted((workdir / folder).rglob("*"))
        if path.is_file() and path.name != STAMP
    ]
    return hashlib.sha256(json.dumps([command.words(), recipe.trtllm, inputs]).encode()).hexdigest()


def _installed(words: list[str], place: Place) -> list[str]:
    """huggingface_hub calls its program hf or huggingface-cli; here it is the one that is installed."""
    names = ("hf", "huggingface-cli")
    if place.image is None and words[0] in names and not shutil.which(words[0]):
        found = next(filter(shutil.which, names), None)
        if found is None:
            raise EngineError("The program hf is not on PATH: pip install huggingface_hub.")
        return [found, *words[1:]]
    return words


def _check_whole(recipe: Recipe, command: Command, folder: Path, log: Path) -> None:
    ending = {"trtllm-build": "engine"}.get(command.program, "safetensors")
    ranks = range(recipe.tp_size * recipe.pp_size) if command.reads else ()
    wanted = ("config.json", *(f"rank{rank}.{ending}" for rank in ranks))
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise EngineError(f"{command.program} ended well but wrote no {missing[0]} into {folder}; its log is {log}.")


def _publish(made: Path, final: Path, say: Callable[[str], None]) -> None:
    old = made.with_name(f"{made.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists() and (final / STAMP).exists():
        final.rename(old)
    elif yours := Keeper(final.parent).make_room(final.name):
        say(f"{final} was not made here: it is now {yours}")
    made.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "(nothing)"
