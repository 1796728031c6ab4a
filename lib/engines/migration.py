"""What TensorRT-LLM removed, since when, and what does the job now; found in any text (notebook 12).

Sources: TensorRT-LLM's release notes, its migration guide (docs/source/legacy/tensorrt-backend-removal.md) and its pull
requests 11723 (warnings), 15763, 15907, 15918 and 16369 (removals).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines import EngineError
from servinglab.errors import did_you_mean

TIMELINE = (
    ("0.15.0", "container 24.11", "trtllm-serve appears; SamplingParams says n, best_of, use_beam_search"),
    ("0.20.0", "container 25.06", "engine lane: min_length becomes min_tokens, random_seed becomes seed"),
    ("1.0.0", "September 2025", "PyTorch backend by default, LLM API declared stable; engines become legacy"),
    ("1.3.0rc", "February 2026", "trtllm-build, convert_checkpoint.py and engines in LLM warn that they will go"),
    ("1.3.0rc20", "30 June 2026", "the last candidate that knows engines"),
    ("1.3.0rc21", "July 2026", "engines, their tools and the five Triton models are gone"),
)

_GONE, _OLD = "1.3.0rc21", "0.20.0"
_LOADS = "LLM(model=…) and trtllm-serve read the Hugging Face checkpoint"


@dataclass(frozen=True)
class Removed:
    """`pattern` finds the thing in a text; `since` is the first version without it."""

    thing: str
    pattern: str
    since: str
    instead: str


REMOVED = (
    Removed("trtllm-build", r"\btrtllm-build\b", _GONE, f"nothing is built any more: {_LOADS}"),
    Removed("trtllm-refit", r"\btrtllm-refit\b", _GONE, "there is nothing to refit: load the new checkpoint"),
    Removed("trtllm-prune", r"\btrtllm-prune\b", _GONE, "there is nothing to prune: no engine without weights exists"),
    Removed("convert_checkpoint.py", r"\b(?:convert_checkpoint|hf_gpt_convert)\.py\b", _GONE,
            f"nothing is converted any more: {_LOADS}"),
    Removed('LLM(backend="tensorrt")', r"""\bbackend\s*=\s*["'](?:tensorrt|trt)["']""", _GONE,
            "leave backend out; the name raises ValueError"),
    Removed("--backend tensorrt", r"--backend[ =](?:tensorrt|trt)\b", _GONE, "leave --backend out"),
    Removed("tensorrt_llm._tensorrt_engine", r"\btensorrt_llm\._tensorrt_engine\b", _GONE,
            "write `from tensorrt_llm import LLM`"),
    Removed("TrtLlmArgs", r"\bTrtLlmArgs\b", _GONE, "use TorchLlmArgs, which is the default"),
    Removed("inflight_batcher_llm", r"\binflight_batcher_llm\b", _GONE,
            "use the llmapi model (its inputs have other names), or trtllm-serve"),
    Removed('backend: "tensorrtllm"', r"""\bbackend:\s*["']tensorrtllm["']""", _GONE,
            'use the llmapi model, whose backend is "python"'),
    Removed("random_seed", r"\brandom_seed\b", _OLD, "it is called seed, on the LLM API too"),
    Removed("min_length", r"\bmin_length\b", _OLD, "it is called min_tokens, on the LLM API too"),
)  # fmt: skip


@dataclass(frozen=True)
class Advice:
    """One thing found in a text: its line (from 1), what it is, the first version without it, what to use."""

    line: int
    thing: str
    since: str
    instead: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.thing} is gone since {self.since}; {self.instead}."


def migrate(text: str) -> list[Advice]:
    """Everything in a script, a Dockerfile or a page that newer versions lack, in the order of its lines."""
    if not isinstance(text, str):
        raise EngineError(f"Give the text of a script, not {text!r:.60}.")
    return [
        Advice(number, removed.thing, removed.since, removed.instead)
        for number, line in enumerate(text.splitlines(), 1)
        for removed in REMOVED
        if re.search(removed.pattern, line)
    ]


def advice(thing: str) -> Removed:
    """What became of one thing, such as "trtllm-build". Raises EngineError for what the list does not hold."""
    known = {removed.thing: removed for removed in REMOVED}
    if thing not in known:
        raise EngineError(f"The list of removed things has no {thing!r}.{did_you_mean(str(thing), known)}")
    return known[thing]
