"""Write a deployment as a model repository that Triton can load (notebook 03).

    <root>/model_repository/<prefix>preprocessing/config.pbtxt, 1/model.py     and four more models
    <root>/_assets/<name>/tokenizer, engines (and draft_engines)               links to the given folders

`_assets` lies beside the repository: inside it, Triton in its default control mode takes the folder for a model and
refuses to start. The same files serve in both lanes: only the engine's folder differs.
"""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from servinglab.errors import did_you_mean
from servinglab.keep import Keeper
from servinglab.lane import resolve_lane
from servinglab.repository import contract, templates
from servinglab.repository.contract import RepositoryError
from servinglab.repository.lint import engine_problem, tokenizer_problem

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
    generation: Literal["new", "old", "1.1"] = "new"
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
    prompt_embedding_table_data_type: Literal["TYPE_FP16"] = "TYPE_FP16"  # the ensemble's is fixed
    parameters: dict[str, Any] = {}

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as errors:
            error = errors.errors()[0]
            name = ".".join(map(str, error["loc"])) or "DeploymentSpec"
            hint = did_you_mean(name, set(DeploymentSpec.model_fields) - {name})
            raise RepositoryError(f"{name}: {error['msg']}, not {error['input']!r:.60}.{hint}") from None
        if self.accumulate_tokens and not self.decoupled:
            raise RepositoryError("accumulate_tokens needs decoupled=True: else there is one response.")
        others = set(contract.parameters("tensorrt_llm").values()) - DeploymentSpec.model_fields.keys()
        for name, value in self.parameters.items():
            if name not in others:
                raise RepositoryError(f"tensorrt_llm has no other parameter {name!r}.{did_you_mean(name, others)}")
            contract.check_value(name, value)

    def replace(self, **changes: Any) -> "DeploymentSpec":
        """The same deployment but for these fields, checked anew."""
        return DeploymentSpec(**(dict(self) | changes))

    def values(self, model: str) -> dict[str, Any]:
        """{template variable: value} for one of the five models; what is left to its default is not in it."""
        models = contract.MODELS + ((contract.DRAFT,) if self.draft_engine_dir else ())
        chosen = dict(self) | self.parameters | {f"{name}_model_name": self.prefix + name for name in models}
        chosen |= {"triton_max_batch_size": self.max_batch_size, "decoupled_mode": self.decoupled,
                   "triton_backend": "tensorrtllm"}  # fmt: skip
        # Of these two, the first reads an engine for vision models only, the second a tokenizer for guided decoding.
        unread = {"preprocessing": "engine_dir", "tensorrt_llm": "tokenizer_dir"}.get(model)
        known = {spot.name for spot in templates.placeholders(contract.template(model, self.generation))} - {unread}
        return {name: value for name, value in chosen.items() if name in known and value is not None}


def build(spec: DeploymentSpec, root: str | Path) -> Path:
    """Write the five models of `spec` under `root` and return the model repository, an absolute path.

    Safe to repeat: unchanged files are left alone, and what you edited moves to `root`/yours before it is written anew.
    Other deployments in the same root stay as they are. Raises RepositoryError, also when `root` holds other things and
    no earlier build; hidden files do not count.
    """
    root = Path(root).expanduser().absolute()
    repository, assets = root / "model_repository", root / "_assets" / spec.name
    links = {"tokenizer": spec.tokenizer_dir, "engines": spec.engine_dir, "draft_engines": spec.draft_engine_dir}
    links = {name: folder for name, folder in links.items() if folder}
    for name, folder in links.items():
        if problem := (tokenizer_problem if name == "tokenizer" else engine_problem)(folder):
            raise RepositoryError(f"{name.removesuffix('s')}_dir {folder} {problem}")
    try:
        found = {path.name for path in root.iterdir() if path.name[0] != "."} if root.is_dir() else set()
        if (other := sorted(found - {"_assets", "model_repository"})) and len(found) - len(other) < 2:
            raise RepositoryError(f"{root} holds something else ({other[0]}) and no earlier build; name a new folder.")
        repository.mkdir(parents=True, exist_ok=True)
        assets.mkdir(parents=True, exist_ok=True)
        for name, target in links.items():
            _link(assets / name, target.expanduser().resolve(), repository, spec)
        keeper = Keeper(root)
        placed = spec.replace(**{f"{name.removesuffix('s')}_dir": assets / name for name in links})
        for model in contract.MODELS + ((contract.DRAFT,) if spec.draft_engine_dir else ()):
            _write(repository / f"{spec.prefix}{model}", model, config_text(placed, model), keeper)
    except OSError as error:
        raise RepositoryError(f"{error.filename or root} cannot be written: {error.strerror}.") from error
    return repository


def build_default(root: str | Path, *, precision: str = "fp32", **overrides) -> Path:
    """Build the course's own model, SmolLM2-135M-Instruct, preparing its weights at first use.

    `overrides` are fields of DeploymentSpec. The lane (`resolve_lane`) says whose engine it is, and nothing else.
    """
    from servinglab import assets  # only here: the rest of this package needs no weights

    given = {"name": "smollm2" if precision == "fp32" else f"smollm2-{precision}"} | overrides
    if "tokenizer_dir" not in given:  # else nothing of the default model is needed, nor the packages to prepare it
        given["tokenizer_dir"] = assets.tokenizer("smollm2")
    if "engine_dir" not in given:
        given["engine_dir"] = assets.engine("smollm2", precision, lane=resolve_lane())
    return build(DeploymentSpec(**given), root)


def write_templates(repository: str | Path, generation: str = "new") -> Path:
    """Write the five templates as model folders (config.pbtxt with placeholders, 1/model.py), to practise filling. What
    you edited in one moves to its folder `yours`, which is no model and no version of one."""
    for model in contract.MODELS:
        folder = Path(repository) / model
        _write(folder, model, contract.template(model, generation), Keeper(folder))
    return Path(repository)


def config_text(spec: DeploymentSpec, model: str) -> str:
    """The config.pbtxt of one of the five models, or of `contract.DRAFT`: its template, filled, without what the
    deployment leaves to its default."""
    name, base = spec.prefix + model, model
    if model == contract.DRAFT:
        base, spec = "tensorrt_llm", spec.replace(engine_dir=spec.draft_engine_dir)
    values = spec.values(base)
    text = contract.template(base, spec.generation, name=name, prefix=spec.prefix)
    if base == "tensorrt_llm":
        # The C++ backend looks these up without a default: absent, the model does not load; empty, they are unset.
        unset = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")
        values = dict.fromkeys(unset, "") | values
    if base == "tensorrt_llm_bls" and spec.bls_decodes:
        for key in ("tokenizer_dir", "skip_special_tokens"):
            text += f'parameters {{ key: "{key}" value {{ string_value: "${{{key}}}" }} }}\n'
            values[key] = spec.values("postprocessing")[key]
    text = re.sub(r'parameters .*"\$\{(\w+)\}".*\n', lambda found: found[0] if found[1] in values else "", text)
    return templates.fill(text, values)


def _write(folder: Path, model: str, config: str, keeper: Keeper) -> None:
    """config.pbtxt, and 1/model.py of a Python model. The version folder of `tensorrt_llm` stays empty: its code is the
    backend."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    keeper.write(folder / "config.pbtxt", config.encode())
    if model in contract.PYTHON_MODELS:
        source = Path(find_spec("reference_backend").origin).parent / "models" / f"{model}.py"  # read, not imported
        keeper.write(folder / "1" / "model.py", source.read_bytes())


def _link(link: Path, target: Path, repository: Path, spec: DeploymentSpec) -> None:
    if link.exists() and link.resolve() == target:
        return
    ours = {spec.prefix + model for model in (*contract.MODELS, contract.DRAFT)}
    users = {path.parent.name for path in repository.glob("*/config.pbtxt") if str(link) in path.read_text("latin-1")}
    users = sorted(users - ours)
    if users or (link.exists() and not link.is_symlink()):
        what = f"already points elsewhere for {', '.join(users)}" if users else f"is a folder, not a link to {target}"
        raise RepositoryError(f"{link} {what}: give this deployment another name.")
    part = link.with_name(f".{link.name}.{os.getpid()}")
    part.symlink_to(target)
    part.replace(link)
