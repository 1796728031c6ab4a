"""Which templates go with which container (notebook 03). Source: the compatibility table of Triton's documents."""

from __future__ import annotations

import re

from engines import compass
from servinglab.repository import contract
from servinglab.repository.errors import RepositoryError

_NAMES = {"old": "min_length and random_seed", "new": "min_tokens and seed", "1.1": "min_tokens and seed"}


def template_generation(text: str) -> str | None:
    """The generation that a template or config is of; None when it has nothing to tell by (pre-, postprocessing)."""
    if re.search(r'"(min_length|random_seed)"', text):
        return "old"
    if "${prompt_embedding_table_data_type}" in text or '"image_sizes_input"' in text:
        return "1.1"
    return "new" if re.search(r'"(min_tokens|seed)"', text) else None


def container_generation(container: str) -> str:
    """The generation of a container: "25.06", "25.06-trtllm-python-py3" or the whole image name."""
    match = re.search(r"(?:^|:)(\d\d)\.(\d\d)(?!\d)", container)
    if match is None:
        raise RepositoryError(f"{container!r} is no Triton container tag such as 25.06 or 25.06-trtllm-python-py3.")
    release = (int(match[1]), int(match[2]))
    firsts = {name: compass.first_release(name) for name in contract.GENERATIONS}
    return max((first, name) for name, first in firsts.items() if release >= first)[1]


def version_warning(text: str, container: str) -> str | None:
    """One sentence when a template or config is of another generation than the container, else None."""
    ours, theirs = template_generation(text), container_generation(container)
    cure = "take the templates that lie in the container."
    if ours is None or ours == theirs:
        return None
    if "old" in (ours, theirs):
        return (
            f"This file has {_NAMES[ours]}, but the models and clients of container {container} use "
            f"{_NAMES[theirs]}: {cure}"
        )
    # "new" and "1.1" differ in what must be filled, the ensemble in nothing; filled, each serves the other's clients.
    if "${" not in text or 'platform: "ensemble"' in text:
        return None
    if theirs == "1.1":
        if "${triton_max_batch_size}" not in text:  # filled so far that one cannot tell the two apart
            return None
        return (
            f"This template is older than container {container}, whose TensorRT-LLM 1.1 also wants "
            f"prompt_embedding_table_data_type: {cure}"
        )
    return (
        f"This template is newer than container {container}, whose templates have no "
        f"prompt_embedding_table_data_type: {cure}"
    )
