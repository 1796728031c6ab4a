"""DeploymentSpec: everything that one deployment of the five models is made of, in one typed object (notebook 03)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engines import compass
from servinglab.errors import did_you_mean
from servinglab.repository import contract, parameter_types, template_history, wiring
from servinglab.repository.errors import RepositoryError
from servinglab.repository.parameter_types import KINDS, text_of

__all__ = ["CHOICES", "LANES", "DeploymentSpec", "RepositoryError", "did_you_mean", "make_spec", "text_of"]

LANES = ("embedded", "trtllm")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COUNTS = (
    "max_batch_size",
    "max_beam_width",
    "bls_instance_count",
    "preprocessing_instance_count",
    "postprocessing_instance_count",
)
CHOICES = {
    "lane": LANES,
    "generation": contract.GENERATIONS,
    "batch_scheduler_policy": KINDS["batch_scheduler_policy"][1:],
    "batching_strategy": KINDS["batching_strategy"][1:],
    "logits_datatype": ("TYPE_FP32", "TYPE_FP16"),
    "encoder_input_features_data_type": ("TYPE_FP16", "TYPE_FP32", "TYPE_BF16"),
    "prompt_embedding_table_data_type": ("TYPE_FP16", "TYPE_BF16"),
}
_SWITCHES = (
    "decoupled",
    "accumulate_tokens",
    "bls_decodes",
    "add_special_tokens",
    "skip_special_tokens",
    "exclude_input_in_output",
)


@dataclass(frozen=True, kw_only=True)
class DeploymentSpec:
    """One deployment. `tokenizer_dir` and `engine_dir` are folders; the rest has the defaults of the course.

    `name` names the folder under `_assets`; `prefix` goes before the five model names, so that several deployments fit
    into one repository. `draft_engine_dir` is the engine of a smaller model with the same tokenizer: it becomes a sixth
    model, `tensorrt_llm_draft`, for requests with `num_draft_tokens` (notebook 10). With `bls_decodes` the BLS model
    turns ids into text itself instead of calling `postprocessing` for every token, which is faster
    (benchmarks/serving.py). `parameters` are further string parameters of `tensorrt_llm`, by their names in NVIDIA's
    template (for example `kv_cache_free_gpu_mem_fraction`); what they may hold is in parameter_types.py. `trtllm` is
    the TensorRT-LLM version that will read them, such as "1.2.1"; without it they must be known to some version of the
    `generation`.

    Raises RepositoryError with one sentence on a bad value.
    """

    tokenizer_dir: Path
    engine_dir: Path
    draft_engine_dir: Path | None = None
    name: str = "smollm2"
    prefix: str = ""
    lane: str = "embedded"
    generation: str = "new"
    max_batch_size: int = 8
    decoupled: bool = True
    accumulate_tokens: bool = False
    bls_decodes: bool = False
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    exclude_input_in_output: bool = False
    max_beam_width: int = 1
    bls_instance_count: int = 1
    preprocessing_instance_count: int = 1
    postprocessing_instance_count: int = 1
    max_tokens_in_paged_kv_cache: int | None = None
    batch_scheduler_policy: str = "guaranteed_no_evict"
    batching_strategy: str = "inflight_fused_batching"
    max_queue_delay_microseconds: int = 0
    max_queue_size: int = 0
    logits_datatype: str = "TYPE_FP32"
    encoder_input_features_data_type: str = "TYPE_FP16"
    prompt_embedding_table_data_type: str = "TYPE_FP16"
    trtllm: str | None = None
    parameters: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        folders = ["tokenizer_dir", "engine_dir"] + ["draft_engine_dir"] * (self.draft_engine_dir is not None)
        for attribute in folders:
            value = getattr(self, attribute)
            if not isinstance(value, (str, Path)) or not str(value):
                raise RepositoryError(f"{attribute} must be the path of a folder, not {value!r}.")
            object.__setattr__(self, attribute, Path(value))
        self._check_names()
        self._check_values()
        self._check_parameters()

    def _check_names(self) -> None:
        for attribute, may_be_empty in (("name", False), ("prefix", True)):
            value = getattr(self, attribute)
            if not (isinstance(value, str) and (_NAME.fullmatch(value) or (may_be_empty and not value))):
                raise RepositoryError(
                    f"{attribute} {value!r} becomes a folder name: use letters, digits, '.', '_' and "
                    f"'-', and begin with a letter or digit."
                )

    def _check_values(self) -> None:
        for attribute, allowed in CHOICES.items():
            value = getattr(self, attribute)
            if value not in allowed:
                raise RepositoryError(f"{attribute} must be one of {', '.join(allowed)}, not {value!r}.")
        for attribute in _SWITCHES:
            if not isinstance(getattr(self, attribute), bool):
                raise RepositoryError(f"{attribute} must be True or False, not {getattr(self, attribute)!r}.")
        self._whole_numbers(_COUNTS, 1)
        self._whole_numbers(("max_queue_delay_microseconds", "max_queue_size"), 0)
        if self.max_tokens_in_paged_kv_cache is not None:
            self._whole_numbers(("max_tokens_in_paged_kv_cache",), 1)
        if self.accumulate_tokens and not self.decoupled:
            raise RepositoryError(
                "accumulate_tokens makes sense only with decoupled=True: without it there is one "
                "response, which already holds the whole text."
            )
        if self.prompt_embedding_table_data_type != "TYPE_FP16" and self.generation != "1.1":
            raise RepositoryError(
                f"prompt_embedding_table_data_type is a choice since TensorRT-LLM 1.1; generation "
                f"{self.generation!r} has TYPE_FP16."
            )

    def _whole_numbers(self, attributes: tuple[str, ...], least: int) -> None:
        for attribute in attributes:
            value = getattr(self, attribute)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
                raise RepositoryError(f"{attribute} must be a whole number of at least {least}, not {value!r}.")

    def _check_parameters(self) -> None:
        if self.trtllm is not None:
            template_history.version(self.trtllm)
            theirs = compass.generation(self.trtllm)
            if theirs != self.generation:
                raise RepositoryError(
                    f"TensorRT-LLM {self.trtllm} has the tensor names of generation {theirs!r}, not "
                    f"{self.generation!r}: give that generation."
                )
        known = {p.variable for p in wiring.parameters("tensorrt_llm")} | {*wiring.LLM_EXTRAS}
        if not isinstance(self.parameters, Mapping):
            raise RepositoryError(f"parameters must map names to values, not {self.parameters!r}.")
        texts = {}
        for variable, value in self.parameters.items():
            if variable in self.__dataclass_fields__:
                raise RepositoryError(f"{variable!r} is a field of DeploymentSpec: give it there, not in parameters.")
            if variable not in known:
                raise RepositoryError(f"tensorrt_llm has no parameter {variable!r}.{did_you_mean(variable, known)}")
            lacking = template_history.lacking(variable, generation=self.generation, trtllm=self.trtllm)
            if lacking:
                raise RepositoryError(lacking)
            texts[variable] = parameter_types.checked(variable, value, "parameter ", trtllm=self.trtllm)
        parameter_types.check_together(texts, cpp_backend=self.lane == "trtllm")

    def model_name(self, model: str) -> str:
        """The name in the repository of one of the five models, e.g. "gemma-tensorrt_llm"."""
        return self.prefix + model

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of the models, inner ones first, a draft model last."""
        draft = (contract.DRAFT,) if self.draft_engine_dir else ()
        return tuple(map(self.model_name, contract.MODELS + draft))

    def values(self, model: str) -> dict[str, str]:
        """{template variable: text} for one of the five models; what is left to its default is not in it."""
        chosen = {
            "triton_max_batch_size": self.max_batch_size,
            "decoupled_mode": self.decoupled,
            "triton_backend": "tensorrtllm" if self.lane == "trtllm" else "python",
        }
        chosen |= {
            f"{inner}_model_name": self.model_name(inner)
            for inner in ("tensorrt_llm", "preprocessing", "postprocessing")
        }
        chosen["tensorrt_llm_draft_model_name"] = self.model_name(contract.DRAFT) if self.draft_engine_dir else None
        chosen |= {name: getattr(self, name) for name in self.__dataclass_fields__}
        known = {*wiring.structural(model, self.generation), *(p.variable for p in wiring.parameters(model))}
        if model == "preprocessing":
            known.discard("engine_dir")  # read for vision models only
        if model == "tensorrt_llm":
            known = (known | {"triton_backend"}) - {"tokenizer_dir"}  # read for guided decoding only
            chosen |= {name: parameter_types.checked(name, value) for name, value in self.parameters.items()}
            known |= self.parameters.keys()
        return {name: text_of(value) for name, value in chosen.items() if name in known and value is not None}


def make_spec(**fields: object) -> DeploymentSpec:
    """DeploymentSpec(**fields), with one sentence for a field that does not exist or is missing."""
    known = DeploymentSpec.__dataclass_fields__
    for name in fields:
        if name not in known:
            raise RepositoryError(f"DeploymentSpec has no field {name!r}.{did_you_mean(name, known)}")
    missing = [name for name in ("tokenizer_dir", "engine_dir") if name not in fields]
    if missing:
        raise RepositoryError(f"DeploymentSpec needs {' and '.join(missing)}: the folder that holds it.")
    return DeploymentSpec(**fields)
