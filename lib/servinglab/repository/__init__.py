"""Model repositories: write them from one DeploymentSpec, fill templates, and check them before a server reads them."""

from servinglab.repository.build import DeploymentSpec, build, build_default, config_text, write_templates
from servinglab.repository.contract import RepositoryError, template
from servinglab.repository.lint import Finding, lint
from servinglab.repository.templates import fill, fill_repository, placeholders

__all__ = [
    "DeploymentSpec", "Finding", "RepositoryError", "build", "build_default", "config_text", "fill", "fill_repository",
    "lint", "placeholders", "template", "write_templates",
]  # fmt: skip
