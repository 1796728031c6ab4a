"""Triton's `llmapi` model as files: config.pbtxt from the name table, 1/model.yaml for LLM() (notebook 12).

Source: triton_backend/all_models/llmapi of TensorRT-LLM 1.3.0rc3; later candidates add image and LoRA inputs. The
program itself, 1/model.py and 1/helpers.py, lies in NVIDIA's container under /app/all_models/llmapi/tensorrt_llm.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from engines import EngineError, llm_names
from servinglab.repository import pbtxt

_OUTPUTS = """
STRING -1: text_output finish_reason stop_reason
FP32 -1: cumulative_logprob
INT32 -1: kv_cache_reused_block kv_cache_missed_block kv_cache_alloc_new_blocks kv_cache_alloc_total_blocks
FP32 -1: kv_cache_hit_rate
INT64 1: arrival_time_ns first_scheduled_time_ns first_token_time_ns last_token_time_ns
FP32 1: acceptance_rate
INT32 1: total_accepted_draft_tokens total_draft_tokens
"""


def config(name: str = "tensorrt_llm") -> pb.ModelConfig:
    """The model's configuration, inputs in the order of the name table.

    As NVIDIA's, it leaves max_batch_size at 0 and the policy unsaid: the model sets both from model.yaml when Triton
    completes configurations (which our TritonServer does with auto_complete=True).
    """
    found = pb.ModelConfig(name=name, backend="python")
    for input_name, row in llm_names.names_of("llmapi").items():
        found.input.add(
            name=input_name,
            data_type=pb.DataType.Value(f"TYPE_{row.datatype}"),
            dims=[-1 if row.datatype == "STRING" else 1],
            optional=not row.on("llmapi").required,
        )
    for line in _OUTPUTS.strip().splitlines():
        head, names = line.split(": ")
        datatype, dims = head.split()
        for output in names.split():
            found.output.add(name=output, data_type=pb.DataType.Value(f"TYPE_{datatype}"), dims=[int(dims)])
    found.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    return found


def yaml(model: str, *, decoupled: bool = False, **arguments: object) -> str:
    """model.yaml: `arguments` go to LLM() (`tensor_parallel_size=2`, `max_beam_width=4`), the rest to Triton.

    Only a decoupled model can stream. Raises EngineError for an argument that this file cannot hold.
    """
    if not isinstance(model, str) or not model:
        raise EngineError(f"model must be a Hugging Face name or a folder, not {model!r}.")
    if "triton_config" in arguments:
        raise EngineError("triton_config is written from `decoupled`; leave it out of the arguments of LLM().")
    if arguments.get("backend") not in (None, "pytorch"):
        raise EngineError("The llmapi model runs the PyTorch backend only, since 1.0; leave backend out.")
    values = {"model": model, "backend": "pytorch", **arguments}
    values["triton_config"] = {"max_batch_size": 0, "decoupled": bool(decoupled)}
    try:
        # JSON is valid YAML.
        return "".join(f"{key}: {json.dumps(value, allow_nan=False)}\n" for key, value in values.items())
    except (TypeError, ValueError) as error:
        raise EngineError(f"model.yaml holds plain values only ({error}).") from None


def write(
    repository: str | Path, model: str, *, name: str = "tensorrt_llm", decoupled: bool = False, **arguments: object
) -> Path:
    """Write the folder `name` into a model repository and return it; it still needs NVIDIA's two programs in `1/`.

    Raises EngineError when the folder is there already, or as `yaml` does; then nothing is written.
    """
    text, target = yaml(model, decoupled=decoupled, **arguments), Path(repository) / name
    if target.exists():
        raise EngineError(f"{target} is there already; choose another name or remove the folder.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(prefix=".half-", dir=target.parent))
    except OSError as error:
        raise EngineError(f"{target} cannot be written: {error.strerror}.") from None
    try:
        half.chmod(0o755)
        (half / "1").mkdir()
        (half / "1" / "model.yaml").write_text(text, encoding="utf-8")
        (half / "config.pbtxt").write_text(pbtxt.to_text(config(name)), encoding="utf-8")
        os.replace(half, target)
    except OSError as error:
        raise EngineError(f"{target} cannot be written: {error.strerror}.") from None
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return target
