"""Lint, fourth part: models that must agree with each other, and the assets they point to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from servinglab.errors import did_you_mean
from servinglab.repository import contract
from servinglab.repository.assets_check import engine_config, engine_problem, tokenizer_problem
from servinglab.repository.findings import Deployment, Model

_TARGETS = {
    "tensorrt_llm_model_name": "tensorrt_llm",
    "preprocessing_model_name": "preprocessing",
    "postprocessing_model_name": "postprocessing",
    "tensorrt_llm_draft_model_name": None,
    "multimodal_encoders_name": None,
}
_TRUE = ("true", "yes", "1", "t")


def check_deployment(group: Deployment, models: dict[str, Model], lane: str | None) -> None:
    """Batch sizes, decoupled mode, BLS targets, instance counts, tokenizer and engine of one deployment."""
    _check_batch_sizes(group)
    _check_decoupled(group)
    if bls := group.get("tensorrt_llm_bls"):
        _check_bls(bls, group, models)
        draft = models.get(bls.parameter("tensorrt_llm_draft_model_name") or "")
        if draft and draft.config is not None:
            _check_draft(draft, group.get("tensorrt_llm"), lane)
    _check_postprocessing(group)
    _check_tokenizers(group)
    if llm := group.get("tensorrt_llm"):
        _check_engine(llm, lane)


def _check_batch_sizes(group: Deployment) -> None:
    sizes = {model: model.config.max_batch_size for model in map(group.get, contract.MODELS) if model}
    for model, size in sizes.items():
        if size < 1:
            model.error(
                "L040",
                model.lines.at("max_batch_size"),
                f"max_batch_size is {size}: without a batch dimension the tensors have other shapes than clients send.",
                "Write max_batch_size: 1 or more.",
            )
    proper = Counter(size for size in sizes.values() if size >= 1)
    if len(proper) < 2:
        return
    usual = proper.most_common(1)[0][0]
    for model, size in sizes.items():
        if size >= 1 and size != usual:
            model.error(
                "L040",
                model.lines.at("max_batch_size"),
                f"max_batch_size is {size} here and {usual} in the other models of the deployment.",
                f"Write max_batch_size: {usual} in all five files.",
            )


def _check_decoupled(group: Deployment) -> None:
    for base in ("preprocessing", "postprocessing"):
        model = group.get(base)
        if model and model.config.model_transaction_policy.decoupled:
            model.error(
                "L041",
                model.lines.at("model_transaction_policy", "decoupled"),
                f"{model.name} is decoupled, but it sends one response for each request.",
                "Remove model_transaction_policy.",
            )
    llm, bls = group.get("tensorrt_llm"), group.get("tensorrt_llm_bls")
    if not (llm and bls):
        return
    ours, theirs = (m.config.model_transaction_policy.decoupled for m in (bls, llm))
    if ours != theirs:
        bls.error(
            "L041",
            bls.lines.at("model_transaction_policy", "decoupled"),
            f"{bls.name} is {_decoupled(ours)} and {llm.name} {_decoupled(theirs)}: streaming through the one does "
            f"not work with the other.",
            f"Write decoupled: {str(theirs).lower()}, or change {llm.name}.",
        )


def _decoupled(value: bool) -> str:
    return "decoupled" if value else "not decoupled"


def _check_bls(bls: Model, group: Deployment, models: dict[str, Model]) -> None:
    for key, default in _TARGETS.items():
        value = bls.parameter(key)
        name = value or default
        if name is None or name in models:
            continue
        origin = f"parameter {key}" if value else f"the default of {key}"
        hint = did_you_mean(name, models) or (
            f" Did you mean {group.prefix + default!r}?" if default and group.prefix + default in models else ""
        )
        bls.error(
            "L042",
            bls.lines.entry("parameters", key=key),
            f"{bls.name} calls {name!r} ({origin}), and the repository has no such model.",
            f"Set {key} to a model of this repository.{hint}",
        )
    if (bls.parameter("accumulate_tokens") or "").lower() not in _TRUE:
        return
    line = bls.lines.entry("parameters", key="accumulate_tokens")
    if not bls.config.model_transaction_policy.decoupled:
        bls.error("L046", line, "accumulate_tokens needs decoupled mode.", "Set accumulate_tokens to false.")
    llm = group.get("tensorrt_llm")
    width = llm.parameter("max_beam_width") if llm else None
    if width and width.isdigit() and int(width) > 1:
        bls.warning(
            "L046",
            line,
            f"accumulate_tokens works with one beam only, and max_beam_width is {width}: a streamed "
            f"request with more beams fails.",
            "Set accumulate_tokens to false, or max_beam_width to 1.",
        )


def _check_postprocessing(group: Deployment) -> None:
    post, llm = group.get("postprocessing"), group.get("tensorrt_llm")
    count = sum(max(g.count, 1) for g in post.config.instance_group) if post else 0
    if count > 1 and llm and llm.config.model_transaction_policy.decoupled:
        post.error(
            "L045",
            post.lines.at("instance_group", 0, "count"),
            f"{post.name} has {count} instances and the "
            f"deployment streams: chunks of one answer can overtake each other.",
            "Write count: 1.",
        )


def _check_tokenizers(group: Deployment) -> None:
    for base in ("preprocessing", "postprocessing"):
        model = group.get(base)
        if model is None:
            continue
        line = model.lines.entry("parameters", key="tokenizer_dir")
        folder = model.parameter("tokenizer_dir")
        if folder:
            problem = tokenizer_problem(Path(folder))
            if problem:
                model.error("L051", line, f"tokenizer_dir {folder} {problem}", "Set tokenizer_dir to the right folder.")
        elif "${tokenizer_dir}" not in model.text:  # else L017 says it
            model.error(
                "L051", line, "The parameter tokenizer_dir is not set.", "Set it to the folder of the tokenizer."
            )


def _check_draft(draft: Model, llm: Model | None, lane: str | None) -> None:
    _check_engine(draft, lane)
    sizes = [_vocabulary(model) for model in (draft, llm) if model]
    if None not in sizes and len(set(sizes)) > 1:
        draft.error(
            "L053",
            draft.lines.entry("parameters", key="gpt_model_path"),
            f"The draft has a vocabulary of {sizes[0]} tokens and {llm.name} one of {sizes[1]}: what the one guesses "
            "means something else to the other.",
            "Take a draft with the tokenizer of its target.",
        )


def _vocabulary(model: Model) -> int | None:
    config = engine_config(Path(model.parameter("gpt_model_path") or "")) or {}
    pretrained = config.get("pretrained_config")
    size = pretrained.get("vocab_size") if isinstance(pretrained, dict) else None
    return size if isinstance(size, int) else None


def _check_engine(llm: Model, lane: str | None) -> None:
    lane = "trtllm" if llm.config.backend == "tensorrtllm" else lane or "embedded"
    line = llm.lines.entry("parameters", key="gpt_model_path")
    folder = llm.parameter("gpt_model_path")
    if not folder:
        if "${engine_dir}" not in llm.text:
            llm.error(
                "L050",
                line,
                "The parameter gpt_model_path (engine_dir) is not set.",
                "Set it to the folder of the engine.",
            )
        return
    problem = engine_problem(Path(folder), lane)
    if problem:
        llm.error(
            "L050",
            line,
            f"gpt_model_path {folder} {problem}",
            "Set it to the engine's folder; where the server runs in a container, lint inside it.",
        )
        return
    built = (engine_config(Path(folder)) or {}).get("build_config")
    most = built.get("max_batch_size") if isinstance(built, dict) and lane == "trtllm" else None
    if isinstance(most, int) and llm.config.max_batch_size > most:
        llm.error(
            "L052",
            llm.lines.at("max_batch_size"),
            f"max_batch_size is {llm.config.max_batch_size}, and the engine was built for at most {most}.",
            f"Write {most} or less in all five files, or build the engine again.",
        )
