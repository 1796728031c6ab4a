"""Write the executor's graph: one ONNX file whose logits are computed only where somebody wants them.

The model builder of onnxruntime-genai writes the transformer, with a fused GroupQueryAttention that updates the key and
value buffers in place. It computes logits for every position: with a vocabulary of 49,152 that is the largest matrix
product of a prompt, and nearly all of it is thrown away. `add_logit_rows` makes the choice an input of the graph.

Inputs:  input_ids int64 [B, S], attention_mask int64 [B, T], logit_rows int64 [N],
         past_key_values.L.key|value float32 [B, kv_heads, P, head_size]
Outputs: logits float32 [N, vocab], present.L.key|value float32 [B, kv_heads, P', head_size]
`logit_rows` holds flat positions b * S + s. A row shorter than the others is padded on the right of its mask.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import runpy
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reference_backend.executor.bfloat16 import narrow_graph
from reference_backend.executor.quantize import quantize_graph
from servinglab.errors import CourseError

PRECISIONS = ("fp32", "bf16", "int4")
VERSION = 3  # a change makes cached engines stale
# The part that trtllm-build's --max_seq_len and --max_batch_size play; an executor may be given less.
MAX_SEQ_LEN = 2048
MAX_BATCH_SIZE = 8
# Each is compared with transformers by tests/unit/test_graph.py.
ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "GraniteForCausalLM",
    "SmolLM3ForCausalLM",
)
_GRAPH_INPUTS = re.compile(r"input_ids|attention_mask|logit_rows|past_key_values\.\d+\.(key|value)")


class GraphError(CourseError):
    """The checkpoint cannot become an executor graph."""


def write_engine(checkpoint: Path, out: Path, precision: str, *, fp32: Path | None = None) -> None:
    """Write config.json, model.onnx and model.onnx.data into the new folder `out` from a Hugging Face checkpoint.

    fp32: the float32 engine of the same checkpoint where there is one; the others are made from it.
    Not atomic: the caller gives a scratch folder and renames it when this returns.
    Raises GraphError when the precision or the model's architecture is not supported.
    """
    import onnx

    require_precision(precision)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    require_architecture(config, checkpoint)
    plain = out if precision == "fp32" else fp32 or out / "fp32"
    if plain != fp32:
        _write_plain(checkpoint, plain, _architecture(config))
    if precision == "int4":
        quantize_graph(plain, out)
    if precision == "bf16":
        narrow_graph(plain, out)
    if (out / "fp32").exists():
        shutil.rmtree(out / "fp32")
    engine = engine_config(config, onnx.load(out / "model.onnx", load_external_data=False), precision)
    (out / "config.json").write_text(json.dumps(engine, indent=2) + "\n", encoding="utf-8")
    (out / "model.onnx.data").chmod((out / "config.json").stat().st_mode)  # some writers make it private


def require_precision(precision: str) -> None:
    """Raise GraphError for a precision that `write_engine` cannot write."""
    if precision not in PRECISIONS:
        raise GraphError(f"Precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}.")


def require_architecture(config: dict[str, Any], where: object) -> None:
    """Raise GraphError when the executor cannot run the model that a checkpoint's config.json describes."""
    if (architecture := _architecture(config)) not in ARCHITECTURES:
        raise GraphError(
            f"The executor cannot run {where}: it is a {architecture}, and only "
            f"{', '.join(name.removesuffix('ForCausalLM') for name in ARCHITECTURES)} models are supported."
        )


def add_logit_rows(model: Any) -> None:
    """Edit an onnx.ModelProto in place: hidden [B, S, H] → [B*S, H] → its rows `logit_rows` → lm_head → [N, vocab]."""
    from onnx import TensorProto, helper

    graph = model.graph
    head = _lm_head(graph)
    flatten = helper.make_node("Flatten", [head.input[0]], ["logit_rows/flat"], "logit_rows/Flatten", axis=2)
    gather = helper.make_node("Gather", [flatten.output[0], "logit_rows"], ["logit_rows/hidden"], "logit_rows/Gather")
    at = list(graph.node).index(head)
    head.input[0] = gather.output[0]
    graph.node.insert(at, flatten)
    graph.node.insert(at + 1, gather)
    graph.input.append(helper.make_tensor_value_info("logit_rows", TensorProto.INT64, ["logit_count"]))
    logits = next(output for output in graph.output if output.name == "logits")
    vocabulary = logits.type.tensor_type.shape.dim[-1].dim_value
    logits.CopyFrom(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["logit_count", vocabulary]))
    # Those behind the edit are wrong now; ONNX Runtime infers all of them again anyway.
    del graph.value_info[:]


def engine_config(config: dict[str, Any], model: Any, precision: str) -> dict[str, Any]:
    """The engine's config.json: TensorRT-LLM's keys where they mean the same, plus "format": "onnx".

    `config` is the checkpoint's config.json, `model` the ONNX model (its cache shapes are the truth about heads).
    """
    from importlib.metadata import version

    caches = [i for i in model.graph.input if i.name.startswith("past_key_values.") and i.name.endswith(".key")]
    kv_heads = caches[0].type.tensor_type.shape.dim[1].dim_value
    heads = config["num_attention_heads"]
    positions = int(config.get("max_position_embeddings") or MAX_SEQ_LEN)
    max_seq_len = min(MAX_SEQ_LEN, positions, _window(config) or MAX_SEQ_LEN)
    rope = config.get("rope_parameters") or {}
    return {
        "format": "onnx",
        "version": version("servinglab"),
        "pretrained_config": {
            "architecture": _architecture(config),
            "dtype": "bfloat16" if precision == "bf16" else "float32",
            "vocab_size": config["vocab_size"],
            "hidden_size": config["hidden_size"],
            "intermediate_size": config.get("intermediate_size"),
            "num_hidden_layers": len(caches),
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_size": config.get("head_dim") or config["hidden_size"] // heads,
            "hidden_act": config.get("hidden_act") or config.get("hidden_activation"),
            "norm_epsilon": config.get("rms_norm_eps"),
            "position_embedding_type": "rope_gpt_neox",
            "rotary_base": config.get("rope_theta") or rope.get("rope_theta"),
            "max_position_embeddings": positions,
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
            "quantization": {"quant_algo": "W4A16" if precision == "int4" else None, "kv_cache_quant_algo": None},
        },
        "build_config": {
            "precision": precision,
            "max_input_len": max_seq_len - 1,
            "max_seq_len": max_seq_len,
            "max_batch_size": MAX_BATCH_SIZE,
            "max_beam_width": 1,
        },
        "builder": {"onnxruntime-genai": version("onnxruntime-genai")},
    }


def _architecture(config: dict[str, Any]) -> str:
    return (config.get("architectures") or ["unknown"])[0]


def _window(config: dict[str, Any]) -> int | None:
    """Positions that every layer sees. The builder writes windows for Gemma only, so others end where theirs does."""
    if _architecture(config).startswith("Gemma") or not config.get("use_sliding_window", True):
        return None
    return config.get("sliding_window")


def _write_plain(checkpoint: Path, out: Path, architecture: str) -> None:
    """model.onnx and model.onnx.data in float32, with the input `logit_rows`."""
    import onnx

    built = out / "builder"
    _run_builder(checkpoint, built, architecture)
    model = onnx.load(built / "model.onnx", load_external_data=False)
    _require_plain_decoder(model, architecture)
    add_logit_rows(model)
    onnx.save(model, out / "model.onnx")
    (built / "model.onnx.data").rename(out / "model.onnx.data")
    shutil.rmtree(built)


def _run_builder(checkpoint: Path, out: Path, architecture: str) -> None:
    """Run the builder's command line inside this process: imports are paid once, and it outlives its functions."""
    argv = ["builder", "-i", str(checkpoint), "-o", str(out), "-p", "fp32", "-e", "cpu", "-c", str(out / "cache")]
    with _quiet() as said:
        old = sys.argv
        try:
            # A cache as long as the sequence in every layer: the executor has one length for all of them.
            sys.argv = [*argv, "--extra_options", "hf_token=false", "windowed_kv_cache=false"]
            runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=False)
        except NotImplementedError as error:
            raise GraphError(
                f"The executor cannot run {architecture} models ({checkpoint}); use a Llama-type model such as smollm2."
            ) from error
        except (Exception, SystemExit) as error:
            tail = said.getvalue().strip().splitlines()[-1:] or ["nothing"]
            raise GraphError(
                f"Writing the graph of {checkpoint} failed: {type(error).__name__}: {error} "
                f"(the builder's last line: {tail[0][-200:]})."
            ) from error
        finally:
            sys.argv = old


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """The builder prints, logs and draws a bar for every tensor: keep that for the error message only."""
    said = io.StringIO()
    level = logging.root.manager.disable
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield said
        finally:
            logging.disable(level)


def _lm_head(graph: Any) -> Any:
    """The matrix product behind `logits`; a scale, bias or soft cap may stand between the two."""
    producers = {output: node for node in graph.node for output in node.output}
    node = producers["logits"]
    while node.op_type not in ("MatMul", "MatMulNBits", "Gemm"):
        node = next(producers[i] for i in node.input if i in producers and producers[i].op_type != "Constant")
    return node


def _require_plain_decoder(model: Any, architecture: str) -> None:
    """Refuse what the executor does not feed: position ids, recurrent states, caches that are not updated in place."""
    extra = [i.name for i in model.graph.input if not _GRAPH_INPUTS.fullmatch(i.name)]
    if not any(node.op_type == "GroupQueryAttention" for node in model.graph.node):
        extra.append("attention without GroupQueryAttention")
    if extra:
        raise GraphError(
            f"The executor cannot run this {architecture} model: its graph needs {', '.join(extra[:3])}; "
            "use a Llama-type model such as smollm2."
        )
