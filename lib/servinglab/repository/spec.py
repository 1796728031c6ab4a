"""DeploymentSpec: everything that one deployment of the five models is made of, in one typed object (notebook 03)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from servinglab.errors import did_you_mean
from servinglab.repository import contract, wiring
from servinglab.repository.errors import RepositoryError

Folder = Annotated[Path, Field(strict=False)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Natural = Annotated[int, Field(ge=0, lt=2**31)]


class DeploymentSpec(BaseModel):
    """One deployment. `tokenizer_dir` and `engine_dir` are folders; the rest has the defaults of the course.

    `name` names the folder under `_assets`; `prefix` goes before the five model names, so that several deployments fit
    into one repository. `draft_engine_dir` is the engine of a smaller model with the same tokenizer: it becomes a sixth
    model, `tensorrt_llm_draft`, for requests with `num_draft_tokens` (notebook 10). With `bls_decodes` the BLS model
    turns ids into text itself instead of calling `postprocessing` for every token, which is faster
    (benchmarks/serving.py). `generation`: whose tensor names, "new" or those of TensorRT-LLM <= 0.19, "old".
    `parameters` are further string parameters of `tensorrt_llm`, by their names in NVIDIA's template (for example
    `kv_cache_free_gpu_mem_fraction`).

    Raises RepositoryError with one sentence on a bad value.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    tokenizer_dir: Folder
    engine_dir: Folder
    draft_engine_dir: Folder | None = None
    name: str = "smollm2"
    prefix: str = ""
    generation: Literal["new", "old"] = "new"
    max_batch_size: Count = 8
    decoupled: bool = True
    accumulate_tokens: bool = False
    bls_decodes: bool = False
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    exclude_input_in_output: bool = False
    max_beam_width: Count = 1
    bls_instance_count: Count = 1
    preprocessing_instance_count: Count = 1
    postprocessing_instance_count: Count = 1
    max_tokens_in_paged_kv_cache: Count | None = None
    batch_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    batching_strategy: Literal["inflight_fused_batching", "inflight_batching", "V1"] = "inflight_fused_batching"
    max_queue_delay_microseconds: Natural = 0
    max_queue_size: Natural = 0
    logits_datatype: Literal["TYPE_FP32", "TYPE_FP16"] = "TYPE_FP32"
    encoder_input_features_data_type: Literal["TYPE_FP16", "TYPE_FP32", "TYPE_BF16"] = "TYPE_FP16"
    parameters: dict[str, Any] = {}

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise RepositoryError(_sentence(error.errors()[0])) from None

    def replace(self, **changes: Any) -> DeploymentSpec:
        """The same deployment but for these fields, checked anew."""
        return DeploymentSpec(**(dict(self) | changes))

    @field_validator("tokenizer_dir", "engine_dir", "draft_engine_dir", mode="before")
    @classmethod
    def _check_folder(cls, value: object) -> object:
        if value is not None and (not isinstance(value, (str, Path)) or not str(value)):
            raise ValueError(f"must be the path of a folder, not {value!r}.")
        return value

    @field_validator("name", "prefix")
    @classmethod
    def _check_name(cls, value: str, info: Any) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value) and (value or info.field_name == "name"):
            raise ValueError(
                f"{value!r} becomes a folder name: use letters, digits, '.', '_' and '-', and begin with a letter or "
                "digit."
            )
        return value

    @model_validator(mode="after")
    def _check_together(self) -> DeploymentSpec:
        if self.accumulate_tokens and not self.decoupled:
            raise ValueError(
                "accumulate_tokens makes sense only with decoupled=True: without it there is one response, which "
                "already holds the whole text."
            )
        known = {p.variable: p for p in wiring.parameters("tensorrt_llm")}
        for name, value in self.parameters.items():
            if name in DeploymentSpec.model_fields:
                raise ValueError(f"{name!r} is a field of DeploymentSpec: give it there, not in parameters.")
            if name not in known:
                raise ValueError(f"tensorrt_llm has no parameter {name!r}.{did_you_mean(name, known)}")
            try:
                known[name].text(value)
            except RepositoryError as error:
                raise ValueError(f"parameter {error}") from None
        return self

    def model_name(self, model: str) -> str:
        """The name in the repository of one of the five models, e.g. "gemma-tensorrt_llm"."""
        return self.prefix + model

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of the models, inner ones first, a draft model last."""
        draft = (contract.DRAFT,) if self.draft_engine_dir else ()
        return tuple(map(self.model_name, contract.MODELS + draft))

    def values(self, model: str) -> dict[str, Any]:
        """{template variable: value} for one of the five models; what is left to its default is not in it."""
        inner = ("tensorrt_llm", "preprocessing", "postprocessing")
        chosen = dict(self) | self.parameters | {f"{name}_model_name": self.model_name(name) for name in inner}
        chosen |= {"triton_max_batch_size": self.max_batch_size, "decoupled_mode": self.decoupled}
        if self.draft_engine_dir:
            chosen["tensorrt_llm_draft_model_name"] = self.model_name(contract.DRAFT)
        known = {*wiring.structural(model), *(p.variable for p in wiring.parameters(model))}
        if model == "preprocessing":
            known.discard("engine_dir")  # read for vision models only
        if model == "tensorrt_llm":
            known.discard("tokenizer_dir")  # read for guided decoding only
            chosen["triton_backend"] = "tensorrtllm"
            known |= {"triton_backend", *self.parameters}
        return {name: value for name, value in chosen.items() if name in known and value is not None}


def _sentence(error: Any) -> str:
    """The first thing that pydantic found wrong."""
    field, given, kind = ".".join(map(str, error["loc"])), error["input"], error["type"]
    if kind == "value_error":
        return f"{field} {error['ctx']['error']}".strip()
    if kind == "extra_forbidden":
        return f"DeploymentSpec has no field {field!r}.{did_you_mean(field, DeploymentSpec.model_fields)}"
    if kind == "missing":
        return f"DeploymentSpec needs {field}: the folder that holds it."
    wanted = error["msg"].removeprefix("Input should be ")
    if kind == "literal_error":
        wanted = "one of " + wanted.replace("'", "").replace(" or ", ", ")
    wanted = {"bool_type": "True or False", "dict_type": "a dict", "path_type": "the path of a folder"}.get(
        kind, wanted
    )
    return f"{error['loc'][0]} must be {wanted}, not {given!r}."
