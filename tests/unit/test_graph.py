"""Engines against independent references: transformers, `engines.reference`, and plain arithmetic."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from executor_helpers import Collector, request
from tiny_models import VOCABULARY, write_checkpoint, write_engine

from drafters import generate
from reference_backend.build import BuildError, build, main
from reference_backend.executor import Executor, graph, quantize
from reference_backend.executor.cache import KVCache
from reference_backend.executor.model import EngineConfig, Model
from reference_backend.executor.rank_files import tensors

torch = pytest.importorskip("torch")

PROMPTS = np.random.default_rng(1).integers(3, VOCABULARY, (2, 24))
ROPE = {"rope_theta": 10000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "Llama": ("Llama", {}),
    "tied Llama": ("Llama", {"tie_word_embeddings": True, "vocab_size": VOCABULARY + 1}),
    "Llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "Llama 3": ("Llama", {"rope_parameters": {**ROPE, **LLAMA3, "rope_type": "llama3"}}),
    "longer Llama": ("Llama", {"rope_parameters": {**ROPE, "rope_type": "linear"}}),
    "Mistral": ("Mistral", {"sliding_window": 100}),
    "Gemma": ("Gemma", {"head_dim": 32, "num_key_value_heads": 1}),
    "GPT-2": ("GPT2", {}),
}


def model_of(name: str, folder: Path):
    """transformers' model, saved in `folder`; norms and biases differ from what they begin with."""
    kind, settings = MODELS[name]
    model = write_checkpoint(folder, kind, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


@pytest.fixture(
    scope="module", params=[(name, tp) for name in MODELS for tp in (1, 2)], ids=lambda p: f"{p[0]} tp{p[1]}"
)
def pair(request, tmp_path_factory):
    """(transformers' model, fp32 engine of one or two ranks)"""
    name, tp_size = request.param
    root = tmp_path_factory.mktemp("pair")
    model = model_of(name, root / "checkpoint")
    return model, write_engine(root / "checkpoint", root / "engine", tp_size=tp_size)


def loaded(engine: Path, rows: int = 2, positions: int = 40) -> tuple[Model, KVCache]:
    """The model as the executor runs it, over a cache of positions that must not be read before they are written."""
    config = EngineConfig.read(engine)
    cache = KVCache(2 * config.layers, rows, config.kv_heads, positions, config.head_size)
    cache.buffers[:] = np.nan
    return Model(config, cache, threads=1), cache


def logits(engine: Path, tokens: np.ndarray) -> np.ndarray:
    """float32 [batch * time, vocab] of prompts [batch, time]."""
    batch, time = tokens.shape
    model, _ = loaded(engine, batch, time)
    return model.forward(tokens, np.full(batch, time), 0, np.arange(batch * time)).copy()


def reference(model, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_logits_of_prompts_and_steps_are_those_of_transformers(pair):
    model, engine = pair
    ours, _ = loaded(engine)
    expected = reference(model, PROMPTS)
    prompt = ours.forward(PROMPTS[:, :12].copy(), np.array([12, 12]), 0, np.array([11, 23, 3]))
    assert prompt == pytest.approx(np.stack([expected[0, 11], expected[1, 11], expected[0, 3]]), abs=5e-5)
    for position in range(12, 24):
        step = ours.forward(PROMPTS[:, position : position + 1].copy(), np.full(2, position + 1), 0, np.arange(2))
        assert step == pytest.approx(expected[:, position], abs=5e-5), position


def test_greedy_text_alone_and_in_a_batch_is_that_of_transformers(pair):
    model, engine = pair
    prompts = [PROMPTS[0, :5], PROMPTS[1, :17], PROMPTS[0, 3:4]]
    expected = []
    for prompt in prompts:
        out = model.generate(torch.tensor(prompt[None]), do_sample=False, max_new_tokens=12, eos_token_id=None)
        expected.append(out[0, len(prompt) :].tolist())
    collector = Collector()
    with Executor(engine, max_batch_size=4, max_seq_len=64) as executor:
        assert [generate(executor, prompt, 12) for prompt in prompts] == expected
        for at, prompt in enumerate(prompts):
            executor.submit(request(str(at), prompt, 12, collector))
        collector.wait(*"012")
    assert [collector.tokens(name) for name in "012"] == expected


def test_rows_of_different_length_share_a_step(pair):
    model, engine = pair
    ours, _ = loaded(engine)
    lengths = np.array([5, 12])
    for row, length in enumerate(lengths):  # each prompt into its own slot, as a request joins a running batch
        ours.forward(PROMPTS[row : row + 1, :length], np.array([length]), row, np.arange(0))
    step = ours.forward(PROMPTS[[0, 1], lengths][:, None], lengths + 1, 0, np.arange(2))
    for row, length in enumerate(lengths):
        assert step[row] == pytest.approx(reference(model, PROMPTS[row : row + 1])[0, length], abs=5e-5)


# --- weights of fewer bits


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("weight_only", ["int8", "int4"])
@pytest.mark.parametrize("name", ["tied Llama", "GPT-2", "Gemma"])
def test_weight_only_engines_compute_with_the_rounded_weights(name, weight_only, tp_size, tmp_path, monkeypatch):
    """The reference rounds each weight by TensorRT-LLM's rule and multiplies in float32."""
    from engines.convert import convert
    from engines.reference import logits as reference_logits
    from engines.shards import load_checkpoint

    kind, settings = MODELS[name]
    wide = {
        "n_embd" if kind == "GPT2" else "hidden_size": 128,
        "n_inner" if kind == "GPT2" else "intermediate_size": 128,
    }
    write_checkpoint(tmp_path / "hf", kind, **{**settings, **wide, **({"head_dim": 64} if kind == "Gemma" else {})})
    source = convert(tmp_path / "hf", tmp_path / "ck", dtype="float16", weight_only=weight_only, tp_size=tp_size)
    engine = build(source, tmp_path / "engine")
    assert EngineConfig.read(engine).precision == weight_only
    expected = reference_logits(load_checkpoint(source), PROMPTS).reshape(48, -1)
    assert distance(logits(engine, PROMPTS), expected) < 0.05  # the kernel rounds activations to eight bits
    monkeypatch.setattr(graph, "ACCURACY", 0)  # … and now it does not
    assert distance(logits(engine, PROMPTS), expected) < 1e-5


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """(model, checkpoint folder, fp32 engine, int4 engine) of one tiny Llama."""
    root = tmp_path_factory.mktemp("llama")
    model = write_checkpoint(root / "checkpoint", tie_word_embeddings=True)
    return model, root / "checkpoint", *(write_engine(root / "checkpoint", root / p, p) for p in ("fp32", "int4"))


def rounded(model, round_to):
    """A copy of transformers' model with other matrices: round_to(name, weight)."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.copy_(round_to(name, weight))
    return made


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)])
def test_sixteen_bits_are_stored_and_computed_with(llama, dtype, kind, tmp_path):
    from engines.convert import convert

    model, checkpoint, fp32, _ = llama
    engine = build(convert(checkpoint, tmp_path / "ck", dtype=dtype), tmp_path / "engine")
    expected = reference(rounded(model, lambda _, weight: weight.to(kind).float()), PROMPTS).reshape(48, -1)
    found = logits(engine, PROMPTS)
    assert found == pytest.approx(expected, abs=5e-5)
    assert abs(found - reference(model, PROMPTS).reshape(48, -1)).max() > 1e-4
    sizes = [(folder / "rank0.engine").stat().st_size for folder in (fp32, engine)]
    assert sizes[1] < 0.55 * sizes[0]


@pytest.mark.parametrize("tp_size", [1, 2])
def test_q4_1_computes_with_the_rounded_weights(llama, tp_size, tmp_path):
    model, checkpoint, _, engine = llama
    if tp_size == 2:
        model = write_checkpoint(tmp_path / "checkpoint", tie_word_embeddings=True, intermediate_size=128)
        engine = write_engine(tmp_path / "checkpoint", tmp_path / "engine", "int4", tp_size=2)

    def round_to(name, weight):
        if weight.dim() < 2:
            return weight
        blocks = weight.reshape(len(weight), -1, 32)
        if "embed_tokens" in name:
            step = blocks.abs().amax(-1, keepdim=True) / 127
            return ((blocks / step).round() * step).reshape(weight.shape)
        low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
        return (low + ((blocks - low) / (high - low) * 15).round() * (high - low) / 15).reshape(weight.shape)

    found = logits(engine, PROMPTS)
    expected, exact = (reference(one, PROMPTS).reshape(48, -1) for one in (rounded(model, round_to), model))
    assert distance(found, expected) < 0.05  # the kernel rounds activations to eight bits
    assert distance(found, exact) > 1.8 * distance(found, expected)  # the comparison can tell


def test_q4_1_is_much_smaller_and_leaves_no_float_matrix(llama):
    *_, fp32, int4 = llama
    sizes = [(engine / "rank0.engine").stat().st_size for engine in (fp32, int4)]
    assert sizes[1] < sizes[0] / 3
    found = tensors(int4 / "rank0.engine")
    assert "lm_head.weight" not in found, "the tied embedding is stored once"
    assert {t.dtype for name, t in found.items() if len(t.shape) == 3 or name.endswith("zero")} == {"U8"}
    assert not [name for name, t in found.items() if t.dtype == "F32" and len(t.shape) == 2 and "scaling" not in name]


def decoded(codes, scales, zeros, columns: int) -> np.ndarray:
    """What the kernel multiplies with, written out: the definition of MatMulNBits, then the rests on their blocks."""
    values = (scales[..., None] * (codes.astype(np.float64) - zeros[..., None])).reshape(len(codes), -1)
    rests = values[:, columns : columns + columns // 32] / 32
    return values[:, :columns] + np.repeat(rests, 32, axis=1)


@pytest.mark.parametrize("columns", [64, 96, 1056])
def test_weights_that_had_four_bits_keep_them(columns):
    random = np.random.default_rng(0)
    levels = random.integers(0, 16, (7, columns // 32, 32))
    levels[..., 0], levels[..., 1] = 0, 15  # as GGUF's Q4_1 makes them: smallest and largest are levels
    step, low = random.uniform(0.01, 0.02, (2, 7, columns // 32, 1))
    weights = (levels * step - 8 * step - low * 0.3).reshape(7, columns).astype(np.float32)
    codes, scales, zeros = quantize.four_bits(weights)
    assert np.array_equal(codes[:, : columns // 32], levels)
    assert decoded(codes, scales, zeros, columns) == pytest.approx(weights, abs=step.max() / 2 / 15)


def test_other_weights_move_half_a_step_at_most():
    weights = np.random.default_rng(0).normal(0, 1, (50, 128)).astype(np.float32)
    weights[0] = 0
    weights[1, :32] = 5
    codes, scales, zeros = quantize.four_bits(weights)
    step = np.repeat(scales[:, :4], 32, axis=1)
    assert (np.abs(decoded(codes, scales, zeros, 128) - weights) <= step * (0.5 + 1 / 15) + 0.35).all()
    normal = slice(2, None)
    assert (np.abs(decoded(codes, scales, zeros, 128) - weights)[normal] <= step[normal] * (0.5 + 1 / 15)).all()


def test_smollm2_says_the_same_in_int4(smollm2_engine_fp32, smollm2_engine_int4, smollm2_tokenizer_dir):
    """Its weights come from a four-bit file, so the four-bit engine must agree with the exact one nearly everywhere."""
    from tokenizers import Tokenizer

    text = (
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\nThe capital of France is "
        "Paris.<|im_end|>\n<|im_start|>user\nList five fruits.<|im_end|>\n<|im_start|>assistant\n1. Bananas\n"
        "2. Apples\n3. Oranges\n4. Grapes\n5. Strawberries<|im_end|>\n"
    )
    tokens = np.array([Tokenizer.from_file(str(smollm2_tokenizer_dir / "tokenizer.json")).encode(text).ids])
    exact, fast = (logits(engine, tokens) for engine in (smollm2_engine_fp32, smollm2_engine_int4))
    assert (exact.argmax(-1) == fast.argmax(-1)).mean() >= 0.93


@pytest.mark.parametrize(("precision", "least", "most"), [("fp32", 0, 1e-3), ("int4", 0.1, 1.5)])
def test_a_token_read_with_others_has_other_logits_in_int4(precision, least, most, smollm2_tokenizer_dir, request):
    """As far as notebook 10 and executor/graph.py say: one row against two, a token alone against a prompt."""
    from tokenizers import Tokenizer

    engine = request.getfixturevalue(f"smollm2_engine_{precision}")
    words = Tokenizer.from_file(str(smollm2_tokenizer_dir / "tokenizer.json"))
    moved = []
    for text in ("The capital of France is Paris. Water boils at", "1, 2, 3, 4, 5, 6, 7,", "Dear Sir or Madam, I am"):
        ids = np.array([words.encode(text).ids])
        length = ids.shape[1]
        model, _ = loaded(engine, 2, length)
        whole = model.forward(ids, np.array([length]), 0, np.array([length - 1])).copy()
        for slot in (0, 1):
            model.forward(ids[:, :-1].copy(), np.array([length - 1]), slot, np.arange(0))
        alone = model.forward(ids[:, -1:].copy(), np.array([length]), 0, np.arange(1)).copy()
        both = model.forward(np.repeat(ids[:, -1:], 2, 0), np.full(2, length), 0, np.arange(2)).copy()
        moved += [abs(other - alone).max() for other in (whole, both)]
        assert np.ptp(alone) > 30, "what they span"
    assert least <= max(moved) <= most


def test_the_cuda_flavour_reads_the_weights_that_transformers_has(tmp_path):
    from reference_backend.executor.cuda import memory

    model = model_of("tied Llama", tmp_path / "checkpoint")
    engine = EngineConfig.read(write_engine(tmp_path / "checkpoint", tmp_path / "engine"))
    found, theirs = memory.load(engine, "cpu", torch.float32), model.model
    assert torch.equal(found.embed, theirs.embed_tokens.weight) and torch.equal(found.norm, theirs.norm.weight)
    assert torch.equal(found.head[:-1], found.embed) and not found.head[-1].any(), "an odd vocabulary has a row more"
    for mine, layer in zip(found.layers, theirs.layers, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        assert torch.equal(mine.qkv, torch.cat([part.weight for part in parts]))
        assert torch.equal(mine.gate_up, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        assert torch.equal(mine.out, attention.o_proj.weight) and torch.equal(mine.down, mlp.down_proj.weight)
        assert torch.equal(mine.input_norm, layer.input_layernorm.weight)
        assert torch.equal(mine.post_norm, layer.post_attention_layernorm.weight)
    cos, sin = theirs.rotary_emb(found.embed, torch.arange(engine.max_seq_len)[None])
    assert torch.allclose(found.cos, cos[0, :, :8], atol=2e-5) and torch.allclose(found.sin, sin[0, :, :8], atol=2e-5)


# --- the build


def test_an_engine_folder_has_nvidias_schema(llama, tmp_path, capsys):
    _, checkpoint, *_ = llama
    write_engine(checkpoint, tmp_path / "first", tp_size=2)
    flags = ["--max_batch_size", "4", "--max_seq_len", "128", "--max_beam_width", "3", "--gather_context_logits"]
    flags += ["--gemm_plugin", "auto", "--workers=2"]
    where = ["--checkpoint_dir", f"{tmp_path}/first.checkpoint", "--output_dir", f"{tmp_path}/engine"]
    assert main([*where, *flags]) == 0
    assert main([*where, *flags]) == 0, "an earlier engine is replaced"
    assert capsys.readouterr().err == "Without effect here: --gemm_plugin, --workers.\n" * 2
    engine = tmp_path / "engine"
    assert sorted(path.name for path in engine.iterdir()) == ["config.json", "rank0.engine", "rank1.engine"]
    assert len({path.stat().st_mode for path in engine.iterdir()}) == 1, "readable for whoever may read the rest"
    config = json.loads((engine / "config.json").read_text())
    assert list(config) == ["version", "pretrained_config", "build_config"]
    assert config["pretrained_config"] == json.loads((tmp_path / "first.checkpoint" / "config.json").read_text())
    limits = {
        "max_input_len": 127,
        "max_seq_len": 128,
        "max_batch_size": 4,
        "max_beam_width": 3,
        "max_num_tokens": 8192,
    }
    assert config["build_config"].items() >= {**limits, "gather_context_logits": True, "kv_cache_type": "paged"}.items()
    read = EngineConfig.read(engine)
    assert (read.max_seq_len, read.max_input_len, read.max_batch_size, read.max_beam_width) == (128, 127, 4, 3)
    assert (read.gather_context_logits, read.gather_generation_logits, read.tp_size) == (True, False, 2)


def test_the_build_needs_no_torch(llama, tmp_path):
    import subprocess

    checkpoint = f"{llama[2]}.checkpoint"
    code = "import sys; sys.modules['torch'] = None; from reference_backend.build import main; sys.exit(main())"
    subprocess.run(
        [sys.executable, "-c", code, "--checkpoint_dir", checkpoint, "--output_dir", tmp_path / "e"], check=True
    )


def test_course_build_is_the_same_program(llama, tmp_path):
    from typer.testing import CliRunner

    from course.cli import app

    where = ["--checkpoint_dir", f"{llama[2]}.checkpoint", "--output_dir", f"{tmp_path}/engine"]
    assert CliRunner().invoke(app, ["build", *where, "--weights", "q4_1", "--max_beam_width", "4"]).exit_code == 0
    engine = EngineConfig.read(tmp_path / "engine")
    assert (engine.precision, engine.max_beam_width) == ("int4", 4)
    assert CliRunner().invoke(app, ["build", *where, "--strip_plan"]).exit_code == 1
    unknown = CliRunner().invoke(app, ["build", *where, "--max_batchsize", "4"])
    assert "has no flag --max_batchsize. Did you mean '--max_batch_size'?" in str(unknown.exception)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--lora_plugin", "float16"], "--lora_plugin float16 cannot be honoured by the reference backend, only dis"),
        (["--kv_cache_type", "continuous"], "--kv_cache_type continuous cannot be honoured by the reference backend"),
        (["--strip_plan"], "--strip_plan cannot be honoured: the reference backend has nothing like it."),
        (["--gemm_plugin", "fp8"], "--gemm_plugin fp8 cannot be honoured: there is no FP8 here."),
        (["--max_batch_size", "0"], "max_batch_size is 0; it must be 1 or more"),
        (["--max_seq_len", "1"], "max_input_len is 0; it must be 1 or more (and max_seq_len 2 or more)."),
    ],
)
def test_flags_that_cannot_be_honoured_are_refused_by_name(flags, says, llama, tmp_path, capsys):
    where = ["--checkpoint_dir", f"{llama[2]}.checkpoint", "--output_dir", f"{tmp_path}/engine"]
    assert main([*where, *flags]) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "engine").exists()


def test_checkpoints_that_cannot_be_built_get_one_sentence(llama, tmp_path):
    good = json.loads(Path(f"{llama[2]}.checkpoint", "config.json").read_text())
    quantized = good["quantization"]
    cases = [
        ({"architecture": "BloomForCausalLM"}, {}, "is a BloomForCausalLM, and only LlamaForCausalLM, "),
        ({"mapping": {"world_size": 2, "tp_size": 1, "pp_size": 2}}, {}, "is split into pipeline stages"),
        ({"quantization": {**quantized, "quant_algo": "FP8"}}, {}, "asks for FP8; only W8A16 and W4A16 are built here"),
        ({"quantization": {**quantized, "kv_cache_quant_algo": "INT8"}}, {}, "asks for a KV cache in INT8"),
        ({"quantization": {**quantized, "quant_algo": "W8A16"}}, {"weights": "q4_1"}, "asks for W8A16 already"),
        ({}, {"weights": "q5"}, "weights must be one of checkpoint, q4_1, not 'q5'"),
        ({}, {}, r"rank0\.safetensors is missing, though config\.json speaks of 1 ranks"),
        ({"mapping": None}, {}, "is no TensorRT-LLM checkpoint"),
    ]
    for changed, options, says in cases:
        (tmp_path / "config.json").write_text(json.dumps({**good, **changed}))
        if options:
            (tmp_path / "rank0.safetensors").touch()
        with pytest.raises(BuildError, match=says):
            build(tmp_path, tmp_path / "out", **options)
        (tmp_path / "rank0.safetensors").unlink(missing_ok=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    with pytest.raises(BuildError, match=r"notes holds something else \(mine\.txt\); name a new folder"):
        build(f"{llama[2]}.checkpoint", tmp_path / "notes")
    (tmp_path / "config.json").write_text(json.dumps(good))
    (tmp_path / "rank0.safetensors").write_bytes(Path(f"{llama[2]}.checkpoint", "rank0.safetensors").read_bytes()[:-9])
    with pytest.raises(Exception, match=r"rank0\.safetensors is damaged or of another kind \(.*file not fully covered"):
        build(tmp_path, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "notes", "rank0.safetensors"]


# Keys of models/{llama,gpt}/config.py of TensorRT-LLM with values that change what is computed, and some wrong ones.
WOULD_CHANGE = [
    ("llama", key, value)
    for key, values in {
        "rotary_scaling": [
            {"type": "dynamic", "factor": 4.0},
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            {"type": "llama3"},
            {"type": "linear", "factor": 0},
        ],
        "rotary_pct": [0.5],
        "rotary_embedding_dim": [8],
        "rotary_dim": [8],
        "position_embedding_type": ["rope_gptj", "alibi", "long_rope", "yarn", "learned_absolute", None],
        "hidden_act": ["swiglu", "geglu", "mish", None],
        "qk_layernorm": [True],
        "residual_mlp": [True],
        "embedding_multiplier": [2.0],
        "attention_multiplier": [2.0],
        "residual_multiplier": [0.5],
        "output_multiplier_scale": [0.5],
        "q_scaling": [2.0],
        "attn_logit_softcapping": [1.0],
        "final_logit_softcapping": [1.0],
        "query_pre_attn_scalar": [64],
        "embedding_scale": [8.0],
        "clip_qkv": [0.1],
        "moe": [{"num_experts": 4, "top_k": 2}],
        "moe_num_experts": [4],
        "norm_epsilon": [None, "small", True],
        "logits_dtype": ["float16"],
        "mapping": [{"world_size": 1, "tp_size": 1, "cp_size": 2}],
        "num_key_value_heads": [4],
        "head_size": [32],
        "hidden_size": [32],
        "intermediate_size": [64],
        "vocab_size": [299],
        "num_hidden_layers": [3],
        "attn_bias": [True],
        "mlp_bias": [True],
        "quantization": [{"quant_algo": "W8A16", "exclude_modules": ["attention.qkv"]}],
        "scale_qk": [True],
        "use_last_layernorm": [False],
        "layer_idx_offset": [1],
    }.items()
    for value in values
] + [
    ("gpt2", key, value)
    for key, value in {
        "q_scaling": 2.0,
        "apply_query_key_layer_scaling": True,
        "norm_before_bmm1": True,
        "inner_layernorm": True,
        "rotary_pct": 0.5,
        "embedding_scale": 8.0,
        "gpt_variant": "starcoder2",
        "bias": False,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": 512,
    }.items()
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    from engines.convert import convert

    root = tmp_path_factory.mktemp("checkpoints")
    for name, kind in {"llama": "Llama", "gpt2": "GPT2"}.items():
        write_checkpoint(root / f"{name}.hf", kind)
        convert(root / f"{name}.hf", root / name, dtype="float16")
    return root


def changed(checkpoint: Path, folder: Path, **keys) -> Path:
    folder.mkdir()
    (folder / "rank0.safetensors").symlink_to(checkpoint / "rank0.safetensors")
    (folder / "config.json").write_text(json.dumps(json.loads((checkpoint / "config.json").read_text()) | keys))
    return folder


@pytest.mark.parametrize(("model", "key", "value"), WOULD_CHANGE, ids=lambda part: str(part)[:30])
def test_a_key_that_the_executor_does_not_read_is_refused_by_name(model, key, value, checkpoints, tmp_path):
    with pytest.raises(BuildError) as caught:
        build(changed(checkpoints / model, tmp_path / "ck", **{key: value}), tmp_path / "out")
    named = {"mapping": "cp_size", "moe": "num_experts", "quantization": "attention.qkv"}.get(key, key)
    said = str(caught.value)
    assert (named in said or ".weight is [" in said or ".weight is not" in said) and "\n" not in said
    assert not (tmp_path / "out").exists()


def test_a_key_that_is_not_there_is_asked_for(checkpoints, tmp_path):
    for key in ("position_embedding_type", "hidden_act", "norm_epsilon", "head_size"):
        folder = changed(checkpoints / "llama", tmp_path / key)
        config = json.loads((folder / "config.json").read_text())
        del config[key]
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(BuildError, match=f"says None for {key}; "):
            build(folder, tmp_path / "out")


def test_what_nvidias_converter_writes_is_taken(checkpoints, tmp_path):
    """All that LLaMAConfig.to_dict of TensorRT-LLM (commit 04100fd0) adds to a Llama without experts."""
    same = {"embedding_multiplier": 1.0, "attention_multiplier": 1.0, "residual_multiplier": 1.0}
    moe = {"num_experts": 0, "shared_expert_intermediate_size": 0, "top_k": 0, "normalization_mode": 1}
    keys = {**same, "output_multiplier_scale": 1.0, "rotary_embedding_dim": 16, "moe": moe, "runtime_defaults": None,
            "fc_after_embed": False, "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True,
            "layer_idx_offset": 0, "remove_duplicated_kv_heads": False, "tie_word_embeddings": False}  # fmt: skip
    config = json.loads((checkpoints / "llama" / "config.json").read_text())
    keys["mapping"] = config["mapping"] | {"cp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1, "auto_parallel": False}
    keys["rotary_scaling"] = {"rope_type": "linear", "factor": 4.0}
    left_out = ["lm_head", "router", "vocab_embedding", "position_embedding", "block_embedding"]
    keys["quantization"] = config["quantization"] | {"quant_algo": "W8A16", "exclude_modules": left_out}
    build(changed(checkpoints / "llama", tmp_path / "ck", **keys), tmp_path / "out")
    keys["rotary_scaling"] = {"type": "linear", "factor": 4.0}
    build(changed(checkpoints / "llama", tmp_path / "ck2", **keys), tmp_path / "out2")
    assert np.array_equal(*(logits(tmp_path / out, PROMPTS) for out in ("out", "out2")))


def test_what_a_person_wrote_at_the_place_of_an_engine_stays(llama, tmp_path):
    checkpoint, out = f"{llama[2]}.checkpoint", tmp_path / "engine"
    built = build(checkpoint, out)
    build(checkpoint, out)  # an engine that nobody touched is replaced
    config = built / "config.json"
    config.write_text(config.read_text() + " ")
    os.utime(config, (time.time() + 60,) * 2)
    with pytest.raises(BuildError, match="a config.json of yours"):
        build(checkpoint, out)
    assert config.read_text().endswith(" ")
    for name in (".git", ".env", "config.json"):
        (folder := tmp_path / f"of {name}").mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(BuildError, match="holds something else"):
            build(checkpoint, folder)
        assert (folder / name).read_text() == "mine"


@pytest.mark.parametrize("world_size", [10**30, -1, "4", None])
def test_a_number_of_ranks_that_cannot_be_is_refused_at_once(world_size, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"architecture": "LlamaForCausalLM", "mapping": {"world_size": world_size, "tp_size": world_size}})
    )
    with pytest.raises(BuildError, match="no TensorRT-LLM checkpoint"):
        build(tmp_path, tmp_path / "out")


def test_course_build_runs_no_python_of_the_current_folder(tmp_path):
    for name in ("numpy", "safetensors", "argparse", "json"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')")
    course = Path(sys.executable).with_name("course")
    subprocess.run([course, "build", "--help"], cwd=tmp_path, capture_output=True)
    subprocess.run([course, "build", "--checkpoint_dir", "x", "--output_dir", "y"], cwd=tmp_path, capture_output=True)
    assert not (tmp_path / "ran").exists()
