"""Check a model repository before a server reads it: file, line and cure for each fault (notebook 03).

Codes and sentences: data/repository.toml. No fault raises: an unreadable repository is itself a finding.
"""

import contextlib
import json
import math
import os
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tritonclient.grpc import model_config_pb2 as pb

from servinglab.errors import did_you_mean
from servinglab.repository import contract, templates
from servinglab.root import data

_FINDINGS = data("repository.toml")["findings"]
# Tensors that differ from release to release, and from model to model.
VARY = ("prompt_embedding_table", "IMAGE_SIZES", "IMAGE_URL", "image_url_input")
MOST_RANKS = 1024
_NEW_NAMES = {old: new for new, old in contract.OLD_NAMES.items()}


class Finding(NamedTuple):
    """An "error" (does not load, or answers wrongly) or a "warning"; a stable code; path and line, from 1, if there is
    one; one sentence about what is wrong, and what to do."""

    severity: str
    code: str
    file: str
    line: int | None
    message: str
    cure: str


class Model:
    """One folder: the text of its config.pbtxt and, where that parses, the message."""

    def __init__(self, folder: Path):
        self.folder, self.name, self.text = folder, folder.name, ""
        self.config: pb.ModelConfig | None = None
        self.findings: list[Finding] = []

    def note(self, rule: str, place: str | int | Path, **facts: Any) -> None:
        """A finding in config.pbtxt, at a line or the first match of a pattern (0: nowhere), or about another file."""
        file, line = (place, 0) if isinstance(place, Path) else (self.folder / "config.pbtxt", place)
        line = (self.line(line) if isinstance(line, str) else line) or None
        *texts, severity = [*_FINDINGS[rule], "error"][:3]
        texts = [text.format(model=self.name, **facts) for text in texts]
        # Names and values come from broken files: no line break or terminal code of theirs reaches the reader.
        shown = (text if text.isprintable() else ascii(text)[1:-1] for text in texts)
        self.findings.append(Finding(severity, rule[:4], str(file), line, *shown))

    def line(self, pattern: str) -> int:
        """The line on which the first match ends, 1 where there is none."""
        found = re.search(pattern, self.text, re.M)
        return self.text.count("\n", 0, found.end()) + 1 if found else 1

    def tensor(self, kind: str, name: str) -> str:
        """The pattern for where the tensor `name`, an "input" or "output", is declared."""
        return rf'(?s:^ *{kind}\b.*?name\s*:\s*"{re.escape(name)}")'

    def parameter(self, key: str) -> str:
        """A string parameter of the config; empty when it is absent, empty or still a placeholder ("not set")."""
        value = self.config.parameters[key].string_value if key in self.config.parameters else ""
        return "" if value.startswith("${") else value


def lint(repo_dir: str | Path) -> list[Finding]:
    """Every finding of a repository, ordered by file and line; a clean repository gives an empty list."""
    top = Model(Path(repo_dir))
    models = _read_repository(top)
    parsed = {name: model for name, model in models.items() if model.config is not None}
    groups: dict[str, dict[str, Model]] = {}  # models that share a name prefix
    for name, model in parsed.items():
        _check_config(model)
        if base := max(filter(name.endswith, contract.MODELS), key=len, default=None):
            groups.setdefault(name.removesuffix(base), {})[base] = model
    for group in groups.values():
        if group.keys() & {"tensorrt_llm", "tensorrt_llm_bls"}:  # other services may have an `ensemble` too
            _check_deployment(group, models)
    for model in parsed.values():
        if model.config.platform == "ensemble":
            _check_ensemble(model, models)
    found = [finding for model in (top, *models.values()) for finding in model.findings]
    return sorted(found, key=lambda f: (f.file, f.line or 0, f.code, f.message))


def _read_repository(top: Model) -> dict[str, Model]:
    """Every model folder by name; what is wrong with folders goes to `top`."""
    models: dict[str, Model] = {}
    try:
        for entry in sorted(entry for entry in top.folder.iterdir() if entry.is_dir()):
            if (entry / "config.pbtxt").exists() or any(path.name.isdigit() for path in entry.iterdir()):
                models[entry.name] = _read_model(Model(entry))
            else:
                top.note("L004" if entry.name == ".ipynb_checkpoints" else "L002", entry, folder=entry.name)
    except OSError as error:
        top.note("L001", top.folder, why=error.strerror)
    if not models and not top.findings:
        top.note("L001 empty", top.folder)
    return models


def _read_model(model: Model) -> Model:
    """Read its config, as far as the file allows, and look at its version folders."""
    try:
        model.text = templates.read_config(model.folder / "config.pbtxt")
        model.config = templates.parse(model.text)
    except OSError as error:
        model.note("L013", 0, why=error.strerror)
    except templates.NO_CONFIG as error:
        unfilled = [spot for spot in templates.placeholders(model.text) if spot.kind == "structural"]
        for spot in unfilled:
            model.note("L016", spot.line, variable=spot.name)
        if not unfilled:
            line, reason = templates.place(error)
            model.note("L015", line, why=reason + _datatype_meant(reason))
    # Triton ignores a folder like "v1" or "01"; an ensemble needs the folder too, though nothing lies in it.
    versions = [e for e in model.folder.iterdir() if re.fullmatch(r"[1-9][0-9]{0,17}", e.name) and e.is_dir()]
    if not versions:
        model.note("L011", model.folder)
    for version in versions if model.config is not None and model.config.backend == "python" else ():
        file = version / (model.config.default_model_filename or "model.py")
        if not file.is_file():
            model.note("L012", file, version=version.name, file=file.name)
    return model


def _datatype_meant(reason: str) -> str:
    """The hint for a datatype that is written as on the wire, as in numpy or without its TYPE_."""
    word = re.search(r"no value named (?:TYPE_)?(\w+)", reason)
    meant = f"TYPE_{word[1]}".replace("BYTES", "STRING").replace("FLOAT", "FP") if word else ""
    return f" Did you mean {meant}?" if meant in pb.DataType.keys() else ""


def _check_config(model: Model) -> None:
    """Rules that need one config.pbtxt only."""
    config = model.config
    if config.name not in ("", model.name):  # without a name Triton takes the folder's
        model.note("L010", r"^ *name\s*:", name=config.name)
    name = config.backend or config.platform
    if config.platform != "ensemble" and not name.startswith("${") and config.backend not in ("python", "tensorrtllm"):
        model.note("L019", r"^ *(backend|platform)\s*:", backend=name)
    for spot in templates.placeholders(model.text):
        model.note("L017" if spot.mandatory else "L018", spot.line, variable=spot.name)
    # Only where the rest of the shape is fixed: [-1, 3, 224, 224]. Else a leading -1 is a length more often than not.
    for kind, tensor in [("input", t) for t in config.input] + [("output", t) for t in config.output]:
        rows, rest = config.max_batch_size, list(tensor.dims[1:])
        if rows > 0 and len(rest) >= 3 and min(rest) > 0 and tensor.dims[0] in (-1, 1, rows):
            facts = {"dims": list(tensor.dims), "rest": rest, "rows": rows, "sizes": len(rest) + 2}
            model.note("L021", model.tensor(kind, tensor.name), kind=kind, tensor=tensor.name, **facts)


def _check_deployment(group: dict[str, Model], models: dict[str, Model]) -> None:
    sizes = Counter(m.config.max_batch_size for m in group.values() if m.config.max_batch_size > 0)
    wanted = max(sizes, key=sizes.get, default=1)
    for base, model in group.items():
        _check_tensors(model, base)
        if (size := model.config.max_batch_size) != wanted:
            model.note("L040", "max_batch_size", size=size, wanted=wanted)
        if base.endswith("processing"):
            _check_folder(model, "L051", "tokenizer_dir", tokenizer_problem)
            if model.config.model_transaction_policy.decoupled:
                model.note("L041 single", "decoupled")
    llm, bls, post = (group.get(name) for name in ("tensorrt_llm", "tensorrt_llm_bls", "postprocessing"))
    streams = llm is not None and llm.config.model_transaction_policy.decoupled
    if post and streams and sum(max(one.count, 1) for one in post.config.instance_group) > 1:
        post.note("L045", r"\bcount\s*:")
    if llm and bls and bls.config.model_transaction_policy.decoupled != streams:
        bls.note("L041 doors", "decoupled", llm=llm.name, streams=str(streams).lower())
    engines = [llm] if llm else []
    for base in ("tensorrt_llm", "preprocessing", "postprocessing", "tensorrt_llm_draft") if bls else ():
        key = f"{base}_model_name"
        name = bls.parameter(key) or base
        if name not in models and (base in contract.MODELS or name != base):
            bls.note("L042", rf'key\s*:\s*"{key}"', name=name, key=key, hint=did_you_mean(name, models))
        elif base == "tensorrt_llm_draft" and name in models and models[name].config is not None:
            engines.append(models[name])
    for model in engines:
        if folder := _check_folder(model, "L050", "gpt_model_path", engine_problem):
            _check_engine(model, engine_facts(folder), [group[base] for base in group if base.endswith("processing")])


def _check_engine(model: Model, engine: "Engine", texts: list[Model]) -> None:
    """What an engine was built for, against the config of its model and the tokenizers of the deployment."""
    if engine.batch and model.config.max_batch_size > engine.batch:
        model.note("L052", "max_batch_size", size=model.config.max_batch_size, most=engine.batch)
    for text in texts if engine.vocabulary else ():
        folder = text.parameter("tokenizer_dir")
        if (highest := _highest_id(folder)) >= engine.vocabulary:
            facts = {"folder": folder, "highest": highest, "llm": model.name, "size": engine.vocabulary}
            text.note("L053", r'key\s*:\s*"tokenizer_dir"', **facts)
    version = re.match(r"(\d+)\.(\d+)(?!.*\+reference)", engine.version)  # the course's own takes either name
    names = {} if not version else contract.OLD_NAMES if (int(version[1]), int(version[2])) < (0, 20) else _NEW_NAMES
    for name in {tensor.name for tensor in model.config.input} & names.keys():
        facts = {"tensor": name, "version": engine.version, "known": names[name]}
        model.note("L054", model.tensor("input", name), **facts)


def _check_folder(model: Model, code: str, key: str, problem: Any) -> Path | None:
    """The folder that a parameter names, if nothing is wrong with it."""
    folder = model.parameter(key)
    wrong = problem(Path(folder)) if folder else "is not set."
    if wrong and not any(finding.code == "L017" for finding in model.findings):  # which says it
        model.note(code, rf'key\s*:\s*"{key}"', folder=folder, why=wrong)
    return None if wrong else Path(folder)


def _check_tensors(model: Model, base: str) -> None:
    old = {tensor.name for tensor in model.config.input} & set(contract.OLD_NAMES.values())
    for kind in ("input", "output"):
        declared = {tensor.name: tensor for tensor in getattr(model.config, kind)}
        for tensor in contract.tensors(kind, base, "old" if old else "new"):
            given = declared.get(tensor.name)
            facts = {"kind": kind, "tensor": tensor.name, "line": tensor.line}
            if given is None:
                model.note("L031 optional" if tensor.optional else "L031", rf"^ *{kind}\b", **facts)
            elif tensor.name not in VARY and given not in _messages(kind, tensor.line):
                model.note("L030", model.tensor(kind, tensor.name), **facts)


@cache
def _messages(kind: str, line: str) -> list[Any]:
    """A template's line as messages: where the deployment chooses the datatype, one for each choice."""
    texts = {re.sub(r"\$\{\w+\}", f"TYPE_{choice}", line) for choice in ("FP32", "FP16", "BF16")}
    return [getattr(templates.parse(text), kind)[0] for text in texts]


def _check_ensemble(model: Model, models: dict[str, Model]) -> None:
    """Steps name models of the repository; every mapped tensor exists on both sides, with one datatype and shape."""
    steps = model.config.ensemble_scheduling.step
    tensors = {t.name: _kind(t, model) for t in model.config.input}  # of the ensemble: name -> what it is
    produced = tensors.keys() | {name for step in steps for name in step.output_map.values()}
    for step in steps:
        named, target = rf'model_name\s*:\s*"{re.escape(step.model_name)}"', models.get(step.model_name)
        if target is None:
            model.note("L043", named, name=step.model_name, hint=did_you_mean(step.model_name, models))
        if target is None or target.config is None:
            continue
        allowed, taken = model.config.max_batch_size, target.config.max_batch_size
        if 0 < taken < allowed and not any(f.code == "L040" for f in model.findings + target.findings):
            model.note("L047", "max_batch_size", allowed=allowed, step=target.name, taken=taken)
        for kind, mapping in (("input", step.input_map), ("output", step.output_map)):
            table = {t.name: t for t in getattr(target.config, kind)}
            for key, name in mapping.items():
                line = model.line(rf'key\s*:\s*"{re.escape(key)}"\s*value\s*:\s*"{re.escape(name)}"')
                if key not in table:
                    hint = did_you_mean(key, table)
                    model.note("L044 key", line, step=target.name, kind=kind, key=key, hint=hint)
                elif kind == "input" and name not in produced:
                    hint = did_you_mean(name, produced)
                    model.note("L044 value", line, step=target.name, name=name, hint=hint)
                else:
                    _agree(model, line, name, _kind(table[key], target), tensors)
        lacking = [t.name for t in target.config.input if not t.optional and t.name not in step.input_map]
        if lacking:
            model.note("L044 lacking", named, step=target.name, names=", ".join(lacking))
    _check_answers(model, models)
    for tensor in model.config.output:
        line = model.line(model.tensor("output", tensor.name))
        if tensor.name in produced:
            _agree(model, line, tensor.name, _kind(tensor, model), tensors)
        else:
            model.note("L044 output", line, tensor=tensor.name)


def _check_answers(model: Model, models: dict[str, Model]) -> None:
    """A decoupled step may answer any number of times, and each answer goes on alone: Triton wants every step's inputs
    from behind the same one, or all from before it."""
    behind = {tensor.name: (0, "") for tensor in model.config.input}  # the last decoupled step on a tensor's way
    steps = list(model.config.ensemble_scheduling.step)
    while ready := [step for step in steps if behind.keys() >= set(step.input_map.values())]:
        for step in ready:
            steps.remove(step)
            sources = {behind[name]: name for name in step.input_map.values()} or {(0, ""): ""}
            (_, early), *_, ((_, source), late) = [*sorted(sources.items())] * 2
            if early != late:
                named = rf'model_name\s*:\s*"{re.escape(step.model_name)}"'
                model.note("L046", named, step=step.model_name, early=early, late=late, source=source)
            target = models.get(step.model_name)
            streams = target and target.config and target.config.model_transaction_policy.decoupled
            last = (len(behind), step.model_name) if streams else max(sources)
            behind |= dict.fromkeys(step.output_map.values(), last)


def _kind(tensor: Any, model: Model) -> tuple[str, tuple[int, ...]]:
    """Datatype and whole shape: where max_batch_size is above 0, the batch dimension comes before dims."""
    known = tensor.data_type in pb.DataType.values()
    datatype = pb.DataType.Name(tensor.data_type) if known else str(tensor.data_type)
    return datatype, (-1,) * (model.config.max_batch_size > 0) + tuple(tensor.dims)


def _agree(model: Model, line: int, name: str, kind: tuple[str, tuple[int, ...]], tensors: dict) -> None:
    """Compare with what is known of the ensemble's tensor `name`, or remember it. -1 fits every size."""
    datatype, shape = tensors.setdefault(name, kind)
    same = len(shape) == len(kind[1]) and all(a == b or -1 in (a, b) for a, b in zip(shape, kind[1], strict=True))
    if datatype != kind[0] or not same:
        rule = "L044 kind" if len(shape) == len(kind[1]) else "L044 dims"
        model.note(rule, line, tensor=name, known=f"{datatype}{list(shape)}", found=f"{kind[0]}{list(kind[1])}")


def tokenizer_problem(folder: Path) -> str | None:
    """Why `folder` holds no tokenizer (the end of a sentence with the cure), or None."""
    found = os.path.exists(folder / "tokenizer.json")  # also False for what no file system can hold
    return None if found else "holds no tokenizer.json: copy the checkpoint's tokenizer there."


def _highest_id(folder: str) -> int:
    """The highest token id of a tokenizer, -1 where there is none that can be read."""
    from tokenizers import Tokenizer

    with contextlib.suppress(Exception):  # tokenizers has no narrower one
        return max(Tokenizer.from_file(f"{folder}/tokenizer.json").get_vocab().values(), default=-1)
    return -1


def engine_problem(folder: Path) -> str | None:
    """Why `folder` is no engine (the end of a sentence with the cure), or None: it holds config.json and, for each
    rank, a rank{r}.engine that is not empty."""
    engine = engine_facts(folder)
    names = [f"rank{n}.engine" for n in range(engine.ranks)]
    names = names or [f"a readable config.json with a world size from 1 to {MOST_RANKS}"]
    if missing := [name for name in names if not os.path.exists(folder / name)]:
        return f"lacks {', '.join(missing[:4])}: copy every file of the build there."
    if empty := [name for name in names if os.path.getsize(folder / name) == 0]:
        return f"has nothing in {', '.join(empty[:4])}: copy every file of the build there."
    if engine.parts != engine.ranks:
        return f"says world_size {engine.ranks} and tp × pp × cp = {engine.parts} in its config.json: build it again."
    return None


class Engine(NamedTuple):
    """Of an engine's config.json: world size, tp × pp × cp, max_batch_size, vocabulary, version."""

    ranks: int = 0
    parts: int = 0
    batch: int = 0
    vocabulary: int = 0
    version: str = ""


def engine_facts(folder: Path) -> Engine:
    """What an engine's config.json says; `ranks` is from 1 to MOST_RANKS, or 0 for one that is not usable."""
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError, TypeError):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model = config.get("pretrained_config", {})
        mapping, batch = model.get("mapping", {}), config.get("build_config", {}).get("max_batch_size", 0)
        sizes = [mapping[key] for key in ("tp_size", "pp_size", "cp_size") if key in mapping]
        ranks = mapping.get("world_size", math.prod(sizes))
        parts = math.prod(sizes) if sizes and not mapping.get("auto_parallel") else ranks
        if type(ranks) is int and 1 <= ranks <= MOST_RANKS:
            return Engine(ranks, parts, int(batch), int(model.get("vocab_size", 0)), str(config.get("version", "")))
    return Engine()
