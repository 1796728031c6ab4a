"""Check a model repository before a server reads it: file, line and cure for each fault (notebook 03).

Codes: L001-L004 folders, L010-L022 one model's files (lint_models.py), L030-L034 the contract's tensors, L040-L047
models that must agree, L050-L052 assets. No fault raises: an unreadable repository is itself a finding.
"""

from __future__ import annotations

import typing
from collections import Counter
from pathlib import Path

from servinglab.errors import did_you_mean
from servinglab.repository import contract, templates
from servinglab.repository.assets_check import engine_config, engine_problem, section, tokenizer_problem
from servinglab.repository.lint_models import (
    Finding,
    Model,
    check_config,
    check_ensemble,
    read_repository,
    type_name,
)
from servinglab.repository.spec import DeploymentSpec

# Declared by releases that contract.py leaves out.
LATER = {"return_num_input_tokens", "return_num_output_tokens", "num_input_tokens", "num_output_tokens",
         "image_sizes_input", "IMAGE_SIZES"}  # fmt: skip
TARGETS = ("tensorrt_llm", "preprocessing", "postprocessing")  # models that the BLS model calls by a parameter


def lint(repo_dir: str | Path, *, container: str | None = None) -> list[Finding]:
    """Every finding of a repository, ordered by file and line; a clean repository gives an empty list.

    `container` (such as "25.06") also compares the tensor names with that container's templates. Raises
    RepositoryError for what is no container tag, never for what is in the repository.
    """
    top = Model(Path(repo_dir))
    models = read_repository(top)
    for model in models.values():
        if model.config is not None:
            check_config(model)
        if container and (warning := templates.version_warning(model.text, container)):
            model.warn("L034", 0, warning, "Take the templates from /app/all_models of that container.")
    _check_deployments(models)
    for model in models.values():
        if model.config is not None and model.config.platform == "ensemble":
            check_ensemble(model, models)
    found = [finding for model in (top, *models.values()) for finding in model.findings]
    return sorted(found, key=lambda f: (f.file, f.line or 0, f.code, f.message))


def _check_deployments(models: dict[str, Model]) -> None:
    """The rules for each group of models that share a name prefix and have an LLM among them."""
    groups: dict[str, dict[str, Model]] = {}
    for name, model in models.items():
        base = max(filter(name.endswith, contract.MODELS), key=len, default=None)
        if base and model.config is not None:
            groups.setdefault(name.removesuffix(base), {})[base] = model
    for prefix, group in groups.items():
        if not group.keys() & {"tensorrt_llm", "tensorrt_llm_bls"}:
            continue  # other services may have an `ensemble` too
        for base, model in group.items():
            for kind in ("input", "output"):
                _check_tensors(model, base, kind)
        _check_batch_sizes(list(group.values()))
        _check_decoupled(group)
        for base in ("preprocessing", "postprocessing"):
            if base in group and "${tokenizer_dir}" not in group[base].text:  # else L017 says it
                _check_folder(group[base], "L051", "tokenizer_dir", tokenizer_problem)
        if llm := group.get("tensorrt_llm"):
            _check_engine(llm)
        if bls := group.get("tensorrt_llm_bls"):
            _check_bls(bls, prefix, models)
            draft = models.get(bls.parameter("tensorrt_llm_draft_model_name"))
            if draft and draft.config is not None:
                _check_engine(draft)


def _names(model: Model) -> set[str]:
    return {tensor.name for tensor in model.config.input}


def _check_tensors(model: Model, base: str, kind: str) -> None:
    generation = "old" if _names(model) & set(contract.OLD_NAMES.values()) else "new"
    table = {t.name: t for t in (contract.inputs if kind == "input" else contract.outputs)(base, generation)}
    declared = {tensor.name: tensor for tensor in getattr(model.config, kind)}
    head = rf"^ *{kind}\b"
    if needed := [name for name, t in table.items() if name not in declared and not t.optional]:
        what = f"{kind}(s) {', '.join(needed)} of the contract are not declared."
        model.note("L031", head, what, "Declare them, or build the deployment again.")
    if optional := [name for name, t in table.items() if name not in declared and t.optional]:
        what = f"Optional {kind}(s) {', '.join(optional)} are not declared: a client that sends one gets "
        what += '"unexpected inference input".'
        model.warn("L031", head, what, "Declare them, or build the deployment again.")
    for name, tensor in declared.items():
        if name in table:
            for field, what, cure in _differences(tensor, table[name], kind):
                model.note("L030", model.tensor_line(kind, name, field), f"{kind} {name} {what}", cure)
        elif name not in LATER:
            hint = did_you_mean(name, table.keys() - declared.keys())
            what = f"{base} has no {kind} {name} in the contract.{hint}"
            model.warn("L032", model.tensor_line(kind, name), what, "Rename or remove it.")


def _differences(tensor: typing.Any, wanted: contract.Tensor, kind: str) -> typing.Iterator[tuple[str, str, str]]:
    """(field, what is wrong with it, cure)"""
    allowed = (f"TYPE_{wanted.datatype}",)
    if wanted.datatype.startswith("$"):
        allowed = typing.get_args(DeploymentSpec.model_fields[wanted.datatype[2:-1]].annotation)
    if wanted.name == "prompt_embedding_table":
        allowed += ("TYPE_BF16",)  # a choice since TensorRT-LLM 1.1
    if (name := type_name(tensor)) not in allowed:
        yield "data_type", f"is {name} and must be {' or '.join(allowed)}.", f"Write data_type: {allowed[0]}."
    dims, right = list(tensor.dims), list(wanted.dims)
    if dims != right and wanted.name not in LATER | {"IMAGE_URL"}:
        yield "dims", f"has dims {dims} and must have {right} (without the batch dimension).", f"Write dims: {right}."
    if kind == "input" and (tensor.HasField("reshape") != wanted.scalar or tensor.reshape.shape):
        how = "must be reshaped to a scalar" if wanted.scalar else "must not be reshaped"
        yield "reshape", f"{how}.", "Write reshape { shape: [] }." if wanted.scalar else "Remove reshape."
    if kind == "input" and wanted.optional and not tensor.optional:
        yield "name", "must be optional: clients leave it out.", "Write optional: true."


def _check_batch_sizes(models: list[Model]) -> None:
    usual = Counter(m.config.max_batch_size for m in models if m.config.max_batch_size > 0).most_common(1)
    for model in models:
        size = model.config.max_batch_size
        if size < 1:
            what = (
                f"max_batch_size is {size}: without a batch dimension the tensors have other shapes than clients send."
            )
            model.note("L040", "max_batch_size", what, "Write max_batch_size: 1 or more.")
        elif size != usual[0][0]:
            what = f"max_batch_size is {size} here and {usual[0][0]} in the other models of the deployment."
            model.note("L040", "max_batch_size", what, f"Write max_batch_size: {usual[0][0]} in all five files.")


def _check_decoupled(group: dict[str, Model]) -> None:
    streams = {base: model.config.model_transaction_policy.decoupled for base, model in group.items()}
    for base in ("preprocessing", "postprocessing"):
        if streams.get(base):
            what = f"{group[base].name} is decoupled, but it sends one response for each request."
            group[base].note("L041", r"^ *decoupled\s*:", what, "Remove model_transaction_policy.")
    if {"tensorrt_llm", "tensorrt_llm_bls"} <= group.keys() and streams["tensorrt_llm"] != streams["tensorrt_llm_bls"]:
        bls, llm = group["tensorrt_llm_bls"], group["tensorrt_llm"]
        said = ["decoupled" if streams[base] else "not decoupled" for base in ("tensorrt_llm_bls", "tensorrt_llm")]
        what = (
            f"{bls.name} is {said[0]} and {llm.name} {said[1]}: streaming through the one does not work with the other."
        )
        cure = f"Write decoupled: {str(streams['tensorrt_llm']).lower()}, or change {llm.name}."
        bls.note("L041", r"^ *decoupled\s*:", what, cure)
    post = group.get("postprocessing")
    count = sum(max(g.count, 1) for g in post.config.instance_group) if post else 0
    if count > 1 and streams.get("tensorrt_llm"):
        what = f"{post.name} has {count} instances and the deployment streams: chunks of an answer can overtake each "
        what += "other."
        post.note("L045", r"\bcount\s*:", what, "Write count: 1.")


def _check_bls(bls: Model, prefix: str, models: dict[str, Model]) -> None:
    for base in (*TARGETS, "tensorrt_llm_draft"):
        key = f"{base}_model_name"
        value = bls.parameter(key)
        name = value or (base if base in TARGETS else "")
        if name and name not in models:
            origin = f"parameter {key}" if value else f"the default of {key}"
            what = f"{bls.name} calls {name!r} ({origin}), and the repository has no such model."
            near = did_you_mean(name, models) or (
                f" Did you mean {prefix + base!r}?" if prefix + base in models else ""
            )
            bls.note("L042", rf'key\s*:\s*"{key}"', what, f"Set {key} to a model of this repository.{near}")


def _check_folder(model: Model, code: str, key: str, problem: typing.Callable[[Path], str | None]) -> Path | None:
    """The folder that a parameter names, if nothing is wrong with it."""
    place, folder = rf'key\s*:\s*"{key}"', model.parameter(key)
    if not folder:
        model.note(code, place, f"The parameter {key} is not set.", "Set it to the folder.")
    elif wrong := problem(Path(folder)):
        cure = f"Set {key} to the right folder; where the server runs in a container, lint inside it."
        model.note(code, place, f"{key} {folder} {wrong}", cure)
    return None if not folder or wrong else Path(folder)


def _check_engine(llm: Model) -> None:
    if "${engine_dir}" in llm.text or not (folder := _check_folder(llm, "L050", "gpt_model_path", engine_problem)):
        return
    most = section(engine_config(folder) or {}, "build_config").get("max_batch_size")
    if isinstance(most, int) and llm.config.max_batch_size > most:
        what = f"max_batch_size is {llm.config.max_batch_size}, and the engine was built for at most {most}."
        cure = f"Write {most} or less in all five files, or build the engine again."
        llm.note("L052", "max_batch_size", what, cure)
