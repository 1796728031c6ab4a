"""Model repositories: write them from one DeploymentSpec, fill templates, and check them before a server reads them."""

from servinglab.repository.build import build, build_default, model_source, write_model
from servinglab.repository.errors import RepositoryError
from servinglab.repository.filling import fill_repository
from servinglab.repository.lint import Finding, lint
from servinglab.repository.pbtxt import PbtxtError, model_config, parse, to_text
from servinglab.repository.spec import DeploymentSpec
from servinglab.repository.templates import (
    Placeholder,
    TemplateError,
    container_generation,
    fill,
    placeholders,
    template,
    version_warning,
    write_templates,
)

__all__ = [
    "DeploymentSpec",
    "Finding",
    "PbtxtError",
    "Placeholder",
    "RepositoryError",
    "TemplateError",
    "build",
    "build_default",
    "container_generation",
    "fill",
    "fill_repository",
    "lint",
    "model_config",
    "model_source",
    "parse",
    "placeholders",
    "template",
    "to_text",
    "version_warning",
    "write_model",
    "write_templates",
]
