"""Check a model repository before a server reads it: file, line and cure for each fault (notebook 03).

Codes: L001-L005 folders, L010-L022 one model's files, L030-L035 the contract's tensors, L040-L047 models that must
agree, L050-L053 assets. No fault raises: an unreadable repository is itself a finding.
"""

from __future__ import annotations

from pathlib import Path

from servinglab.repository import versions
from servinglab.repository.findings import Finding, deployments
from servinglab.repository.lint_config import check_model
from servinglab.repository.lint_contract import check_contract
from servinglab.repository.lint_deployment import check_deployment
from servinglab.repository.lint_ensemble import check_ensemble
from servinglab.repository.lint_files import read_repository
from servinglab.repository.spec import LANES, RepositoryError

__all__ = ["Finding", "lint"]


def lint(repo_dir: str | Path, *, lane: str | None = None, container: str | None = None) -> list[Finding]:
    """Every finding of a repository, ordered by file and line; a clean repository gives an empty list.

    `lane` ("embedded" or "trtllm") says where it will be served; None takes the lane that `tensorrt_llm`'s backend
    asks for. `container` (such as "25.06") also compares the tensor names with that container's templates. Raises
    RepositoryError for an unknown lane or container tag, never for what is in the repository.
    """
    if lane not in (None, *LANES):
        raise RepositoryError(f"lane must be one of {', '.join(LANES)}, not {lane!r}.")
    if container is not None:
        versions.container_generation(container)
    models, found = read_repository(Path(repo_dir))
    groups = deployments(models)
    for model in models.values():
        if model.config is not None:
            check_model(model, lane)
        warning = versions.version_warning(model.text, container) if container else None
        if warning:
            model.warning("L034", None, warning, "Take the templates from /app/all_models of that container.")
    for group in groups:
        check_contract(group)
        check_deployment(group, models, lane)
    for model in models.values():
        if model.config is not None and model.config.platform == "ensemble":
            check_ensemble(model, models)
        found += model.findings
    return sorted(found, key=lambda f: (f.file, f.line or 0, f.code, f.message))
