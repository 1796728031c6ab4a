"""Run a request with tensorrt_llm.LLM where that is possible, and say why not where it is not (notebook 12)."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from engines import EngineError, llm_names, llm_values
from engines.llm_api import translate
from servinglab import scratch

_PROGRAM = """from tensorrt_llm import LLM, SamplingParams
{imports}

def main():
    llm = LLM({load})
    params = SamplingParams({fields})
{answer}

if __name__ == "__main__":  # the workers are new processes that import this file
    main()
"""
_WHOLE = """    for output in llm.generate({prompt}, params).outputs:
        print(output.text)
"""
_STREAM = """    for output in llm.generate_async({prompt}, params, streaming=True):
        print(output.outputs[0].text_diff, end="", flush=True)
"""


def script(request: Mapping[str, Any], model: str) -> str:
    """The Python program that runs a request of the LLM API on `model`, a folder or a Hugging Face name.

    Raises EngineError for a request that `translate` would refuse.
    """
    request, _ = translate(request, "llm_api", "llm_api")
    if "lora_request" in request:
        raise EngineError("lora_request is an object that only your own program can make; leave it out here.")
    said = {row.idea: request[name] for name, row in llm_names.names_of("llm_api").items() if name in request}
    width = llm_values.beams(llm_values.filled(said, "llm_api"), "llm_api")
    guide = request.pop("guided_decoding", None)
    fields = [f"{name}={value!r}" for name, value in request.items() if name not in llm_names.ARGUMENTS]
    if guide is not None:
        fields.append(f"guided_decoding=GuidedDecodingParams({', '.join(f'{k}={v!r}' for k, v in guide.items())})")
    return _PROGRAM.format(
        imports="" if guide is None else "from tensorrt_llm.llmapi import GuidedDecodingParams\n",
        load=f"model={model!r}" + (f", max_beam_width={width}" if width > 1 else ""),
        fields=", ".join(fields),
        answer=(_STREAM if request.get("streaming") else _WHOLE).format(
            prompt=json.dumps(request["inputs"], ensure_ascii=False)
        ),
    )


def missing() -> str | None:
    """What this machine lacks to run such a program, as the end of a sentence; None when it can."""
    if importlib.util.find_spec("tensorrt_llm") is None:
        return "tensorrt_llm is not installed"
    if shutil.which("nvidia-smi") is None:
        return "there is no NVIDIA GPU"
    return None


def run(program: str, *, timeout: float = 600) -> str:
    """Run a program of `script` in a process of its own; what it printed. Raises EngineError with its last words."""
    with scratch.folder() as folder:
        path = folder / "ask.py"
        path.write_text(program, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"The program did not end within {timeout:g} s; allow more with timeout=….") from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise EngineError(f"The program failed: {last[-1]}")
    return done.stdout
