"""`trtllm-build` for machines without TensorRT-LLM: its flags, and an engine for the reference backend.

    python -m reference_backend.trtllm_build --checkpoint_dir tllm_checkpoint --output_dir engine --max_beam_width 4

Flags that change speed or memory on a GPU are taken and said to have no effect; those that would change what the engine
can do, and cannot be honoured, are refused by name. `--weights q4_1` is ours.
"""

from __future__ import annotations

import argparse
import sys
import time

from reference_backend.build import WEIGHTS, build
from reference_backend.errors import BackendError

_LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width")
_GATHER = ("gather_context_logits", "gather_generation_logits")
_SPEED = (
    "opt_num_tokens", "tokens_per_block", "paged_kv_cache", "gpt_attention_plugin", "bert_attention_plugin",
    "gemm_plugin", "nccl_plugin", "moe_plugin", "mamba_conv1d_plugin", "context_fmha", "bert_context_fmha_fp32_acc",
    "use_paged_context_fmha", "use_fp8_context_fmha", "remove_input_padding", "multiple_profiles", "reduce_fusion",
    "user_buffer", "norm_quant_fusion", "pp_reduce_scatter", "use_fused_mlp", "paged_state", "workers",
    "profiling_verbosity", "input_timing_cache", "output_timing_cache", "log_level", "max_draft_len",
)  # fmt: skip
_SPEED_SWITCHES = ("fast_build", "monitor_memory")
_OFF = (
    "lora_plugin", "dora_plugin", "gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin",
    "low_latency_gemm_swiglu_plugin", "gemm_allreduce_plugin", "fuse_fp4_quant", "streamingllm",
)  # fmt: skip
_ONE_VALUE = {  # what is built here, and nothing else
    "kv_cache_type": "paged", "logits_dtype": "float32", "speculative_decoding_mode": "draft_tokens_external",
    "max_prompt_embedding_table_size": "0", "max_multimodal_len": "0", **dict.fromkeys(_OFF, "disable"),
}  # fmt: skip


def main(args: list[str] | None = None) -> int:
    """0, or 1 with one sentence on standard error when a flag or the checkpoint cannot be honoured."""
    parser = argparse.ArgumentParser(prog="course build", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--checkpoint_dir", required=True)
    parser.add_argument("--output_dir", default="engine_outputs")
    for name in _LIMITS:
        parser.add_argument(f"--{name}", type=int)
    for name in (*_GATHER, "gather_all_token_logits", *_SPEED_SWITCHES):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--weights", choices=WEIGHTS, default="checkpoint", help="not a flag of trtllm-build")
    for name in (*_SPEED, *_ONE_VALUE):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    given, unknown = parser.parse_known_args(args)
    try:
        if unknown:
            raise BackendError(f"{unknown[0]} cannot be honoured: the reference backend has nothing like it.")
        for name, value in _ONE_VALUE.items():
            if (asked := getattr(given, name)) not in (None, value):
                raise BackendError(f"--{name} {asked} cannot be honoured by the reference backend, only {value}.")
        if given.gemm_plugin in ("fp8", "nvfp4"):
            raise BackendError(f"--gemm_plugin {given.gemm_plugin} cannot be honoured: there is no FP8 here.")
        speed = {name: getattr(given, name) for name in (*_SPEED, *_SPEED_SWITCHES) if getattr(given, name)}
        if speed:
            print(f"Without effect here: {', '.join('--' + name for name in speed)}.", file=sys.stderr)
        start = time.perf_counter()
        out = build(
            given.checkpoint_dir,
            given.output_dir,
            **{name: getattr(given, name) for name in _LIMITS if getattr(given, name) is not None},
            **{name: getattr(given, name) or given.gather_all_token_logits for name in _GATHER},
            weights=given.weights,
            plugins={name: value for name, value in speed.items() if name not in _SPEED_SWITCHES},
        )
    except (BackendError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for path in sorted(out.glob("rank*.engine")):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    print(f"built in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
