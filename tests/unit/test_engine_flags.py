"""Flag tables: facts read in the sources of TensorRT-LLM, every refusal in one sentence, doubts told as doubts."""

from __future__ import annotations

import re

import pytest

from engines import EngineError, flags
from engines.versions import containers, table
from engines.versions import version as by_age

VERSIONS = sorted({c.trtllm for c in containers()}, key=by_age)
GPT, LLAMA, GEMMA = (f"{model}/convert_checkpoint.py" for model in ("gpt", "llama", "gemma"))
BUILD = "trtllm-build"

# (program, flag, first version with it, first version without it), typed by hand from the trees and release notes.
PERIODS = [
    (BUILD, "--max_batch_size", "0.9.0", None), (BUILD, "--max_output_len", "0.9.0", "0.12.0"),
    (BUILD, "--max_seq_len", "0.11.0", None), (BUILD, "--max_decoder_seq_len", "0.11.0", None),
    (BUILD, "--tp_size", "0.9.0", "0.12.0"), (BUILD, "--pp_size", "0.9.0", "0.12.0"),
    (BUILD, "--use_custom_all_reduce", "0.9.0", "0.12.0"), (BUILD, "--multi_block_mode", "0.9.0", "0.12.0"),
    (BUILD, "--context_fmha_fp32_acc", "0.9.0", "0.12.0"), (BUILD, "--strongly_typed", "0.9.0", "0.11.0"),
    (BUILD, "--weight_only_precision", "0.9.0", "0.11.0"), (BUILD, "--enable_xqa", "0.9.0", "0.16.0"),
    (BUILD, "--builder_opt", "0.9.0", "0.14.0"), (BUILD, "--builder_force_num_profiles", "0.12.0", "0.15.0"),
    (BUILD, "--nccl_plugin", "0.10.0", None), (BUILD, "--strip_plan", "0.10.0", None),
    (BUILD, "--weight_streaming", "0.10.0", None), (BUILD, "--speculative_decoding_mode", "0.10.0", None),
    (BUILD, "--reduce_fusion", "0.11.0", None), (BUILD, "--fast_build", "0.12.0", None),
    (BUILD, "--kv_cache_type", "0.13.0", None), (BUILD, "--paged_kv_cache", "0.9.0", None),
    (BUILD, "--low_latency_gemm_plugin", "0.13.0", None), (BUILD, "--monitor_memory", "0.15.0", None),
    (BUILD, "--user_buffer", "0.16.0", None), (BUILD, "--auto_parallel", "0.9.0", "1.2.0"),
    (GPT, "--use_embedding_sharing", "0.9.0", "0.16.0"), (LLAMA, "--use_embedding_sharing", "0.9.0", "0.16.0"),
    (GPT, "--load_nemo_on_gpu", "0.9.0", "0.12.0"), (GPT, "--load_model_on_cpu", "0.12.0", None),
    (LLAMA, "--load_model_on_cpu", "0.9.0", None), (LLAMA, "--quant_ckpt_path", "0.11.0", None),
    (LLAMA, "--use_fp8", "0.13.0", None), (LLAMA, "--cp_size", "0.16.0", None), (LLAMA, "--calib_size", "0.14.0", None),
    (GEMMA, "--ckpt-type", "0.9.0", None), (GEMMA, "--world-size", "0.9.0", None),
    (GEMMA, "--use-weight-only-with-precision", "0.9.0", None),
    (GEMMA, "--modelopt_quant_ckpt_path", "0.10.0", "0.11.0"),
]  # fmt: skip
DEFAULTS = [
    (BUILD, "--max_batch_size", {"0.9.0": 1, "0.10.0": 1, "0.11.0": 256, "0.13.0": 256, "0.14.0": 2048, "1.2.1": 2048}),
    (BUILD, "--tokens_per_block", {"0.9.0": 128, "0.10.0": 64, "0.18.2": 64, "0.19.0": 32, "1.2.1": 32}),
    (BUILD, "--use_paged_context_fmha", {"0.9.0": "disable", "0.17.0.post1": "disable", "0.20.0": "enable"}),
    (BUILD, "--max_num_tokens", {"0.9.0": None, "0.10.0": None, "0.11.0": 8192, "1.2.1": 8192}),
    (BUILD, "--max_output_len", {"0.9.0": 1024, "0.11.0": None}),
    (BUILD, "--max_seq_len", {"0.11.0": None, "1.2.1": None}),
    (BUILD, "--gpt_attention_plugin", {"0.9.0": "float16", "0.11.0": "auto", "1.2.1": "auto"}),
    (BUILD, "--paged_kv_cache", {"0.9.0": "enable", "0.12.0": "enable", "0.13.0": None}),
    (GPT, "--dtype", {"0.9.0": "float16", "0.14.0": "float16", "0.15.0": "auto"}),
]  # fmt: skip


@pytest.mark.parametrize(("program", "flag", "first", "gone"), PERIODS)
def test_when_a_flag_exists(program, flag, first, gone):
    for version in VERSIONS:
        now = by_age(version)
        expected = now >= by_age(first) and (gone is None or now < by_age(gone))
        assert (flag in flags.known(program, version)) == expected, version


@pytest.mark.parametrize(("program", "flag", "values"), DEFAULTS)
def test_defaults_that_changed(program, flag, values):
    for version, value in values.items():
        assert flags.known(program, version)[flag].default_for(version) == value, version


def test_every_row_can_be_explained_and_parsed():
    for program in table("flags")["programs"]:
        for version in VERSIONS:
            for name, row in flags.known(program, version).items():
                assert flags.explain(program, name, version).startswith(row.explain)
                assert row.explain[0].isupper() and row.explain.endswith("."), name
                choices, default = row.choices_for(version), row.default_for(version)
                assert choices is None or default is None or default in choices, (program, name, version)
                assert by_age(row.since) < by_age(row.removed)
    rows = [
        (row.program, s) for p in table("flags")["programs"] for v in VERSIONS for s, row in flags.known(p, v).items()
    ]
    assert len(set(rows)) > 150


def test_no_two_rows_claim_the_same_flag_in_one_version():
    for program in table("flags")["programs"]:
        for version in [*VERSIONS, "1.3.0rc3"]:
            rows = [row for row in flags.rows(program) if row.exists(version)]
            spelled = [s for row in rows for s in row.spellings]
            assert len(spelled) == len(set(spelled)), (program, version)


@pytest.mark.parametrize(
    ("program", "trtllm", "args", "said"),
    [
        (BUILD, "1.2.1", ["--max_output_len", "50"], r"lost --max_output_len.* 0\.12\.0.*use --max_seq_len"),
        (BUILD, "0.10.0", ["--max_seq_len", "50"], r"only since TensorRT-LLM 0\.11\.0.*use --max_output_len"),
        (BUILD, "0.16.0", ["--tp_size", "2"], r"lost --tp_size in TensorRT-LLM 0\.12\.0.*convert_checkpoint"),
        (BUILD, "0.12.0", ["--use_custom_all_reduce", "disable"], "leave it out"),
        (BUILD, "0.9.0", ["--kv_cache_type", "paged"], "use --paged_kv_cache enable"),
        (BUILD, "1.2.0", ["--auto_parallel", "2"], r"lost --auto_parallel in TensorRT-LLM 1\.2\.0"),
        (BUILD, "1.2.1", ["--dtype", "float16"], "--dtype of convert_checkpoint.py"),
        (BUILD, "1.2.1", ["--model_dir", "x"], "use --checkpoint_dir"),
        (BUILD, "1.2.1", ["--max-batch-size", "8"], r"no flag --max-batch-size\. Did you mean '--max_batch_size'"),
        (BUILD, "1.2.1", ["--max_batch_size=eight"], "needs a whole number, not 'eight'"),
        (BUILD, "1.2.1", ["--max_batch_size"], "needs a whole number"),
        (BUILD, "1.2.1", ["--gemm_plugin", "fp16"], "one of auto, float16"),
        (BUILD, "0.10.0", ["--gemm_plugin", "auto"], "one of float16, float32, bfloat16, disable, not 'auto'"),
        (BUILD, "1.2.1", ["--remove_input_padding", "true"], "one of enable, disable"),
        (BUILD, "1.2.1", ["--gather_context_logits", "enable"], "takes no value"),
        (BUILD, "1.2.1", ["x", "--workers", "2"], "'x' stands where a flag is expected"),
        (BUILD, "1.3.0rc21", [], "notebook 12"), (BUILD, "0.8.0", [], "older"),
        (GEMMA, "1.2.1", ["--tp_size", "2"], "use --world-size"),
        (GEMMA, "0.9.0", ["--pp_size", "2"], "no pipeline parallelism"),
        (GEMMA, "0.9.0", ["--model-dir", "a"], "needs --output-model-dir"),
        (GEMMA, "0.16.0", ["--model_dir", "a"], "use --model-dir"),
        (GPT, "1.2.1", ["--world-size", "2"], "use --tp_size"), (LLAMA, "1.2.1", ["--ckpt-type", "hf"], "Gemma's"),
        (GPT, "0.14.0", ["--dtype", "auto"], "one of float32, bfloat16, float16"),
        (GPT, "1.2.1", ["--weight_only_precision", "int4_awq"], "one of int8, int4"),
        ("convert_checkpoint.py", "1.2.1", [], r"No flags are known.*Did you mean"),
    ],
)  # fmt: skip
def test_what_is_refused(program, trtllm, args, said):
    with pytest.raises(EngineError, match=said) as caught:
        flags.check(program, trtllm, args)
    assert "\n" not in str(caught.value)


def test_pairs_and_words_are_the_same_and_good_ones_pass():
    assert flags.check(BUILD, "1.2.1", [("--max_batch_size", 8), ("--gather_context_logits", None)]) == []
    assert flags.check(BUILD, "1.2.1", "--max_batch_size 8 --gather_context_logits --max_seq_len=20".split()) == []
    assert flags.check(LLAMA, "0.16.0", ["--moe_tp_size", "-1", "-sq", "0.5", "--weight_only_precision"]) == []
    assert flags.check(BUILD, "0.16.0", ["--lora_target_modules", "attn_q", "attn_v", "--lora_dir", "a"]) == []


def test_deprecated_and_doubtful_flags_are_told_not_refused():
    (old,) = flags.check(BUILD, "0.13.0", ["--paged_kv_cache", "enable"])
    assert re.search(r"with a warning since 0\.13\.0: use --kv_cache_type paged", old)
    assert flags.check(BUILD, "0.12.0", ["--paged_kv_cache", "enable"]) == []
    (doubt,) = flags.check(BUILD, "0.12.0", ["--kv_cache_type", "paged"])
    assert "inferred" in doubt, "0.12.0 itself was not read; one tree before has no such flag and one after has it"
    (doubt,) = flags.check(GEMMA, "0.17.0", ["--model-dir", "a", "--output_dir", "b", "--output-model-dir", "b"])
    assert "--output_dir" in doubt and "inferred" in doubt


def test_an_explanation_says_what_is_inferred():
    assert "Default: 64." in flags.explain(BUILD, "--tokens_per_block", "0.16.0")
    assert "inferred" not in flags.explain(BUILD, "--tokens_per_block", "0.16.0")
    assert "inferred" in flags.explain(BUILD, "--tokens_per_block", "0.19.0")
    assert "with a warning since 0.13.0" in flags.explain(BUILD, "--paged_kv_cache", "1.2.1")
    with pytest.raises(EngineError, match="lost"):
        flags.explain(BUILD, "--max_output_len", "1.2.1")
