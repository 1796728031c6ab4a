"""Model repositories: write them from one DeploymentSpec, fill templates, and check them before a server reads them."""

from servinglab.repository.build import build, build_default, model_source, write_model
from servinglab.repository.filling import FillReport, plan_filling, write_filling
from servinglab.repository.findings import Finding
from servinglab.repository.lint import lint
from servinglab.repository.pbtxt import PbtxtError, model_config, parse, to_text
from servinglab.repository.spec import DeploymentSpec, RepositoryError, make_spec
from servinglab.repository.templates import (
    Placeholder,
    TemplateError,
    fill,
    fill_file,
    placeholders,
    template,
    write_templates,
)
from servinglab.repository.versions import container_generation, template_generation, version_warning

__all__ = [
    "DeploymentSpec",
    "FillReport",
    "Finding",
    "PbtxtError",
    "Placeholder",
    "RepositoryError",
    "TemplateError",
    "build",
    "build_default",
    "container_generation",
    "fill",
    "fill_file",
    "lint",
    "make_spec",
    "model_config",
    "model_source",
    "parse",
    "placeholders",
    "plan_filling",
    "template",
    "template_generation",
    "to_text",
    "version_warning",
    "write_filling",
    "write_model",
    "write_templates",
]
