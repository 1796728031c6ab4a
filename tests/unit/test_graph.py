"""The executor's graph against transformers, and its quantization against plain arithmetic."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from tiny_models import VOCABULARY, write_checkpoint

from reference_backend.executor import graph, quantize

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxruntime_genai")
torch = pytest.importorskip("torch")

PROMPTS = np.random.default_rng(1).integers(3, VOCABULARY, (2, 24))
SETTINGS = {"Gemma": {"head_dim": 32}, "Gemma2": {"head_dim": 32, "sliding_window": 8}, "Qwen3": {"head_dim": 32}}


class Session:
    """Runs an engine as the executor does: one buffer for each layer's keys and values, past and present in one."""

    def __init__(self, engine: Path, rows: int = 2, positions: int = 40) -> None:
        self.session = ort.InferenceSession(engine / "model.onnx", providers=["CPUExecutionProvider"])
        model = json.loads((engine / "config.json").read_text())["pretrained_config"]
        shape = (rows, model["num_key_value_heads"], positions, model["head_size"])
        self.caches = {
            f"{layer}.{kind}": np.full(shape, np.nan, np.float32)  # what was never written must not be read
            for layer in range(model["num_hidden_layers"])
            for kind in ("key", "value")
        }

    def __call__(self, tokens: np.ndarray, mask: np.ndarray, rows: list[int]) -> np.ndarray:
        binding = self.session.io_binding()
        binding.bind_cpu_input("input_ids", np.ascontiguousarray(tokens, np.int64))
        binding.bind_cpu_input("attention_mask", np.ascontiguousarray(mask, np.int64))
        binding.bind_cpu_input("logit_rows", np.array(rows, np.int64))
        for name, cache in self.caches.items():
            view = cache[: len(tokens)]
            place = ("cpu", 0, np.float32, view.shape, view.ctypes.data)
            binding.bind_input(f"past_key_values.{name}", *place)
            binding.bind_output(f"present.{name}", *place)
        binding.bind_output("logits", "cpu")
        self.session.run_with_iobinding(binding)
        return binding.get_outputs()[-1].numpy()


def reference(model, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


@pytest.mark.parametrize("kind", [name.removesuffix("ForCausalLM") for name in graph.ARCHITECTURES])
def test_every_architecture_gives_the_logits_of_transformers(kind, tmp_path):
    model = write_checkpoint(tmp_path / "checkpoint", kind, **SETTINGS.get(kind, {}))
    (tmp_path / "engine").mkdir()
    graph.write_engine(tmp_path / "checkpoint", tmp_path / "engine", "fp32")
    session = Session(tmp_path / "engine")
    expected = reference(model, PROMPTS)

    prompt = session(PROMPTS[:, :12], np.ones((2, 12)), [11, 23, 3])
    assert prompt == pytest.approx(np.stack([expected[0, 11], expected[1, 11], expected[0, 3]]), abs=3e-5)
    for position in range(12, 24):
        step = session(PROMPTS[:, position : position + 1], np.ones((2, position + 1)), [0, 1])
        assert step == pytest.approx(expected[:, position], abs=3e-5), position


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """(model, checkpoint folder, fp32 engine, int4 engine) of one tiny Llama."""
    root = tmp_path_factory.mktemp("llama")
    model = write_checkpoint(root / "checkpoint", tie_word_embeddings=True)
    engines = [root / "fp32", root / "int4"]
    for engine in engines:
        engine.mkdir()
    graph.write_engine(root / "checkpoint", engines[0], "fp32")
    graph.write_engine(root / "checkpoint", engines[1], "int4", fp32=engines[0])
    return model, root / "checkpoint", *engines


def test_rows_of_different_length_share_a_step(llama):
    model, _, engine, _ = llama
    session = Session(engine)
    lengths = (5, 12)
    for row, length in enumerate(lengths):  # each prompt into its own slot, as a request joins a running batch
        lone = Session(engine, rows=1)
        lone(PROMPTS[row : row + 1, :length], np.ones((1, length)), [length - 1])
        for name in session.caches:
            session.caches[name][row] = lone.caches[name][0]
    tokens = np.array([[PROMPTS[row, length]] for row, length in enumerate(lengths)])
    mask = np.arange(13) <= np.array(lengths)[:, None]
    step = session(tokens, mask, [0, 1])
    for row, length in enumerate(lengths):
        assert step[row] == pytest.approx(reference(model, PROMPTS[row : row + 1])[0, length], abs=3e-5)


@pytest.mark.parametrize(("kind", "settings"), [("Llama", {}), ("Gemma2", {"final_logit_softcapping": 3.0})])
def test_the_edit_changes_no_logit(kind, settings, tmp_path):
    write_checkpoint(tmp_path / "checkpoint", kind, **SETTINGS.get(kind, {}), **settings)
    graph._run_builder(tmp_path / "checkpoint", tmp_path / "plain", kind)
    (tmp_path / "engine").mkdir()
    graph.write_engine(tmp_path / "checkpoint", tmp_path / "engine", "fp32")
    heads = json.loads((tmp_path / "engine" / "config.json").read_text())["pretrained_config"]
    empty = np.zeros((2, heads["num_key_value_heads"], 0, heads["head_size"]), np.float32)
    feed = {"input_ids": PROMPTS, "attention_mask": np.ones_like(PROMPTS)}
    feed |= {f"past_key_values.{layer}.{kind}": empty for layer in range(2) for kind in ("key", "value")}
    plain = ort.InferenceSession(tmp_path / "plain" / "model.onnx").run(["logits"], feed)[0]
    rows = np.array([47, 0, 24, 0, 11])
    edited = ort.InferenceSession(tmp_path / "engine" / "model.onnx").run(["logits"], {**feed, "logit_rows": rows})[0]
    assert plain.shape == (2, 24, VOCABULARY)
    assert edited.shape == (5, VOCABULARY)
    assert edited == pytest.approx(plain.reshape(48, -1)[rows], rel=0, abs=1e-6)


def test_the_engine_folder_holds_three_files_and_says_what_it_is(llama):
    _, checkpoint, fp32, int4 = llama
    for engine, precision in ((fp32, "fp32"), (int4, "int4")):
        assert sorted(p.name for p in engine.iterdir()) == ["config.json", "model.onnx", "model.onnx.data"]
        found = json.loads((engine / "config.json").read_text())
        source = json.loads((checkpoint / "config.json").read_text())
        assert found["format"] == "onnx"
        assert found["build_config"]["precision"] == precision
        assert found["build_config"]["max_seq_len"] == 256
        for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "vocab_size"):
            assert found["pretrained_config"][key] == source[key]
        assert found["pretrained_config"]["head_size"] == 16
        assert found["pretrained_config"]["rotary_base"] == 10000.0
        mode = (engine / "model.onnx.data").stat().st_mode
        assert mode == (engine / "config.json").stat().st_mode  # readable for whoever may read the rest


def test_bf16_stores_rounded_weights_and_computes_with_them(llama, tmp_path):
    import torch

    model, checkpoint, fp32, _ = llama
    graph.write_engine(checkpoint, tmp_path, "bf16", fp32=fp32)
    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():
        if parameter.dim() > 1:
            parameter.data = parameter.data.to(torch.bfloat16).float()
    found = Session(tmp_path)(PROMPTS[:, :12], np.ones((2, 12)), [3, 23])
    expected = reference(rounded, PROMPTS)
    assert found == pytest.approx(np.stack([expected[0, 3], expected[1, 11]]), abs=3e-5)
    assert abs(found - reference(model, PROMPTS)[[0, 1], [3, 11]]).max() > 1e-3
    sizes = [(engine / "model.onnx.data").stat().st_size for engine in (fp32, tmp_path)]
    tables = 2 * 256 * 8 * 4  # the rotary ones stay as they are
    assert sizes[1] - tables < 0.55 * (sizes[0] - tables)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["pretrained_config"]["dtype"] == "bfloat16" and config["build_config"]["precision"] == "bf16"


def test_a_sliding_window_that_the_graph_lacks_bounds_the_sequence():
    base = {"num_attention_heads": 4, "hidden_size": 64, "vocab_size": 300, "max_position_embeddings": 8192}
    windows = [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 100}, 100),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, 2048),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 100, "use_sliding_window": False}, 2048),
        ({"architectures": ["Gemma2ForCausalLM"], "sliding_window": 100}, 2048),
    ]
    from onnx import TensorProto, helper

    cache = helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, ["b", 2, "p", 16])
    model = helper.make_model(helper.make_graph([], "g", [cache], []))
    for settings, expected in windows:
        assert graph.engine_config({**base, **settings}, model, "fp32")["build_config"]["max_seq_len"] == expected


def test_unsupported_models_and_precisions_get_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}))
    with pytest.raises(graph.GraphError, match=r"is a GPT2LMHeadModel, and only Llama, .* are supported\.$"):
        graph.write_engine(tmp_path, tmp_path / "out", "fp32")
    with pytest.raises(graph.GraphError, match=r"Precision 'fp8' is not known; choose one of fp32, bf16, int4\.$"):
        graph.write_engine(tmp_path, tmp_path / "out", "fp8")


def test_a_damaged_checkpoint_gets_one_sentence(tmp_path):
    write_checkpoint(tmp_path / "checkpoint")
    weights = tmp_path / "checkpoint" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    (tmp_path / "engine").mkdir()
    with pytest.raises(graph.GraphError, match="^Writing the graph of .* failed: ") as error:
        graph.write_engine(tmp_path / "checkpoint", tmp_path / "engine", "fp32")
    assert "\n" not in str(error.value)


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


def test_the_int4_graph_computes_with_the_rounded_weights(llama):
    model, checkpoint, _, engine = llama
    import copy

    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in rounded.named_parameters():
            if weight.dim() < 2:
                continue
            blocks = weight.reshape(len(weight), -1, 32)
            if "embed_tokens" in name:
                step = blocks.abs().amax(-1, keepdim=True) / 127
                blocks = (blocks / step).round() * step
            else:
                low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
                blocks = low + ((blocks - low) / (high - low) * 15).round() * (high - low) / 15
            weight.copy_(blocks.reshape(weight.shape))
    found = Session(engine)(PROMPTS, np.ones_like(PROMPTS), list(range(48)))
    expected = reference(rounded, PROMPTS).reshape(48, -1)
    exact = reference(model, PROMPTS).reshape(48, -1)

    def distance(other: np.ndarray) -> float:
        return float(np.sqrt(np.mean((found - other) ** 2)) / other.std())

    assert distance(expected) < 0.05  # the kernel rounds activations to int8
    assert distance(exact) > 2 * distance(expected)  # the weights really are rounded: the comparison can tell


def test_int4_is_much_smaller_and_leaves_no_float_weights(llama):
    import onnx

    *_, fp32, int4 = llama
    sizes = [(engine / "model.onnx.data").stat().st_size for engine in (fp32, int4)]
    assert sizes[1] < sizes[0] / 2
    model = onnx.load(int4 / "model.onnx", load_external_data=False)
    assert not [n.name for n in model.graph.node if n.op_type == "MatMul"]
    assert sum(n.op_type == "GatherBlockQuantized" for n in model.graph.node) == 1  # the tied embedding


def test_smollm2_says_the_same_in_int4(smollm2_engine_fp32, smollm2_engine_int4, smollm2_tokenizer_dir):
    """Its weights come from a four-bit file, so the four-bit engine must agree with the exact one nearly everywhere."""
    from tokenizers import Tokenizer

    text = (
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\nThe capital of France is "
        "Paris.<|im_end|>\n<|im_start|>user\nList five fruits.<|im_end|>\n<|im_start|>assistant\n1. Bananas\n"
        "2. Apples\n3. Oranges\n4. Grapes\n5. Strawberries<|im_end|>\n"
    )
    tokens = np.array([Tokenizer.from_file(str(smollm2_tokenizer_dir / "tokenizer.json")).encode(text).ids])
    count = tokens.shape[1]
    exact, fast = (
        Session(engine, rows=1, positions=count)(tokens, np.ones_like(tokens), list(range(count)))
        for engine in (smollm2_engine_fp32, smollm2_engine_int4)
    )
    assert (exact.argmax(-1) == fast.argmax(-1)).mean() >= 0.93
