"""Write a deployment as a model repository that Triton can load (notebook 03).

    <root>/model_repository/<prefix>preprocessing/config.pbtxt, 1/model.py     and four more models
    <root>/_assets/<name>/tokenizer, engines (and draft_engines)               links to the given folders

`_assets` lies beside the repository: inside it, Triton in its default control mode takes the folder for a model and
refuses to start. The same files serve in both lanes: only the engine's folder differs.
"""

from __future__ import annotations

import os
from pathlib import Path

from servinglab.keep import Keeper
from servinglab.repository import contract, pbtxt
from servinglab.repository.assets_check import engine_problem, tokenizer_problem
from servinglab.repository.errors import RepositoryError
from servinglab.repository.spec import DeploymentSpec
from servinglab.server.install import reference_backend

ASSETS, REPOSITORY = "_assets", "model_repository"


def build(spec: DeploymentSpec, root: str | Path) -> Path:
    """Write the five models of `spec` under `root` and return the model repository, an absolute path.

    Safe to repeat: unchanged files are left alone, and what you edited moves to `root`/yours before it is written anew.
    Other deployments in the same root stay as they are. Raises RepositoryError when the tokenizer or the engine is
    unusable, when `name` already stands for other assets, or when `root` holds other things and no earlier build;
    hidden files do not count.
    """
    _require(tokenizer_problem(spec.tokenizer_dir), "tokenizer_dir", spec.tokenizer_dir)
    _require(engine_problem(spec.engine_dir), "engine_dir", spec.engine_dir)
    if spec.draft_engine_dir:
        _require(engine_problem(spec.draft_engine_dir), "draft_engine_dir", spec.draft_engine_dir)
    root = Path(root).expanduser().absolute()
    _refuse_other_content(root)
    repository = root / REPOSITORY
    assets = root / ASSETS / spec.name
    links = {"tokenizer": spec.tokenizer_dir, "engines": spec.engine_dir, "draft_engines": spec.draft_engine_dir}
    links = {name: folder for name, folder in links.items() if folder}
    try:
        repository.mkdir(parents=True, exist_ok=True)
        assets.mkdir(parents=True, exist_ok=True)
        for name, target in links.items():
            _link(assets / name, target.expanduser().resolve(), repository, spec)
        draft = assets / "draft_engines" if spec.draft_engine_dir else None
        placed = spec.replace(tokenizer_dir=assets / "tokenizer", engine_dir=assets / "engines", draft_engine_dir=draft)
        for model in contract.MODELS + ((contract.DRAFT,) if draft else ()):
            write_model(placed, model, repository)
    except OSError as error:
        raise RepositoryError(f"{error.filename or root} cannot be written: {error.strerror}.") from error
    return repository


def build_default(root: str | Path, *, precision: str = "fp32", **overrides) -> Path:
    """Build the course's own model, SmolLM2-135M-Instruct, preparing its weights at first use.

    `precision` is "fp32", "int4" or "bf16"; `overrides` are fields of DeploymentSpec.
    """
    from servinglab import assets  # only here: the rest of this package needs no weights

    given = {"name": "smollm2" if precision == "fp32" else f"smollm2-{precision}"} | overrides
    if "tokenizer_dir" not in given:  # else nothing of the default model is needed, nor the packages to prepare it
        given["tokenizer_dir"] = assets.tokenizer("smollm2")
    if "engine_dir" not in given:
        given["engine_dir"] = assets.engine("smollm2", precision)
    return build(DeploymentSpec(**given), root)


def write_model(spec: DeploymentSpec, model: str, repository: str | Path) -> Path:
    """Write one of the five models, or `contract.DRAFT`, as a folder of `repository`: config.pbtxt, and 1/model.py of a
    Python model. The version folder of `tensorrt_llm` stays empty: its code is the backend."""
    folder = Path(repository).absolute() / spec.model_name(model)
    version = folder / "1"
    version.mkdir(parents=True, exist_ok=True)
    keeper = Keeper(folder.parents[1])
    keeper.write(folder / "config.pbtxt", pbtxt.to_text(pbtxt.model_config(spec, model)).encode())
    if model in contract.PYTHON_MODELS:
        keeper.write(version / "model.py", model_source(model).encode())
    return folder


def model_source(model: str) -> str:
    """The model.py of one of the three Python models, as the package reference_backend ships it."""
    source = reference_backend() / "models" / f"{model}.py"
    try:
        return source.read_text(encoding="utf-8")
    except OSError as error:
        raise RepositoryError(f"The package lacks {source}: install servinglab again.") from error


def _require(problem: str | None, field: str, folder: Path) -> None:
    if problem:
        raise RepositoryError(f"{field} {folder} {problem}")


def _refuse_other_content(root: Path) -> None:
    try:
        found = {path.name for path in root.iterdir() if not path.name.startswith(".")}
    except OSError:
        return  # not there yet, or no folder, which writing will say
    own = {ASSETS, REPOSITORY}
    if own <= found or not found - own:
        return
    other = sorted(found - own)
    raise RepositoryError(
        f"{root} holds something else ({other[0]}{', …' if len(other) > 1 else ''}) and no earlier build; name a new "
        f"folder."
    )


def _link(link: Path, target: Path, repository: Path, spec: DeploymentSpec) -> None:
    if link.exists() and link.resolve() == target:
        return
    if link.exists() and not link.is_symlink():
        raise RepositoryError(
            f"{link} is a folder of its own, not a link to {target}: move it away, or give this "
            f"deployment another name."
        )
    if link.is_symlink():
        users = [
            config.parent.name
            for config in sorted(repository.glob("*/config.pbtxt"))
            if config.parent.name not in spec.model_names and str(link) in config.read_text(errors="replace")
        ]
        if users:
            raise RepositoryError(
                f"{link} already points elsewhere for {', '.join(users)}: give this deployment another name."
            )
    part = link.with_name(f".{link.name}.{os.getpid()}")
    part.symlink_to(target)
    part.replace(link)
