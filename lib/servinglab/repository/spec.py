"""DeploymentSpec: everything that one deployment of the five models is made of, in one typed object (notebook 03)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from servinglab.errors import did_you_mean
from servinglab.repository import contract, templates, wiring
from servinglab.repository.contract import RepositoryError

Folder = Annotated[Path, Field(strict=False)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Natural = Annotated[int, Field(ge=0, lt=2**31)]
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # it becomes the name of a folder


class DeploymentSpec(BaseModel):
    """One deployment. `tokenizer_dir` and `engine_dir` are folders; the rest has the defaults of the course.

    `name` names the folder under `_assets`; `prefix` goes before the five model names, so that several deployments fit
    into one repository. `draft_engine_dir` is the engine of a smaller model with the same tokenizer: it becomes a sixth
    model, `tensorrt_llm_draft`, for requests with `num_draft_tokens` (notebook 10). With `bls_decodes` the BLS model
    turns ids into text itself instead of calling `postprocessing` for every token, which is faster
    (benchmarks/serving.py). `parameters` are further string parameters of `tensorrt_llm`, by their names in NVIDIA's
    template (for example `kv_cache_free_gpu_mem_fraction`). Raises RepositoryError on a bad value.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    tokenizer_dir: Folder
    engine_dir: Folder
    draft_engine_dir: Folder | None = None
    name: Annotated[str, StringConstraints(pattern=rf"^{NAME}\z")] = "smollm2"
    prefix: Annotated[str, StringConstraints(pattern=rf"^({NAME})?\z")] = ""
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
        except ValidationError as errors:
            error = errors.errors()[0]
            name = ".".join(map(str, error["loc"])) or "DeploymentSpec"
            hint = did_you_mean(name, set(DeploymentSpec.model_fields) - {name})
            raise RepositoryError(f"{name}: {error['msg']}, not {error['input']!r:.60}.{hint}") from None

    def replace(self, **changes: Any) -> DeploymentSpec:
        """The same deployment but for these fields, checked anew."""
        return DeploymentSpec(**(dict(self) | changes))

    @model_validator(mode="after")
    def _check_together(self) -> DeploymentSpec:
        if self.accumulate_tokens and not self.decoupled:
            raise RepositoryError("accumulate_tokens needs decoupled=True: else there is one response.")
        known = {p.variable: p for p in wiring.parameters("tensorrt_llm")}
        for name, value in self.parameters.items():
            if name in DeploymentSpec.model_fields or name not in known:
                raise RepositoryError(f"tensorrt_llm has no other parameter {name!r}.{did_you_mean(name, known)}")
            known[name].text(value)
        return self

    def model_name(self, model: str) -> str:
        """The name in the repository of one of the five models, e.g. "gemma-tensorrt_llm"."""
        return self.prefix + model

    def values(self, model: str) -> dict[str, Any]:
        """{template variable: value} for one of the five models; what is left to its default is not in it."""
        chosen = (
            dict(self) | self.parameters | {f"{name}_model_name": self.model_name(name) for name in contract.MODELS}
        )
        chosen |= {"triton_max_batch_size": self.max_batch_size, "decoupled_mode": self.decoupled,
                   "triton_backend": "tensorrtllm"}  # fmt: skip
        if self.draft_engine_dir:
            chosen["tensorrt_llm_draft_model_name"] = self.model_name(contract.DRAFT)
        # Of these two, the first reads an engine for vision models only, the second a tokenizer for guided decoding.
        unread = {"preprocessing": "engine_dir", "tensorrt_llm": "tokenizer_dir"}.get(model)
        known = {spot.name for spot in templates.placeholders(templates.template(model, self.generation))}
        known -= {unread} - self.parameters.keys()
        return {name: value for name, value in chosen.items() if name in known and value is not None}
