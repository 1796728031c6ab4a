"""Real engines built with TensorRT-RTX on this machine's CPU: what is in the file, what is refused, in which words."""

from __future__ import annotations

import sys

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from engines import EngineError, plan
from engines.plan import build, read_header, refusals

pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX is for x86-64 Linux")

WIDTH = 64
MLP = """mlp (TYPE[BATCH, 64] x) => (TYPE[BATCH, 10] y) {
    [dense_1] a = MatMul(x, w1)
    [bias_1] b = Add(a, b1)
    [relu_1] c = Relu(b)
    [dense_2] y = MatMul(c, w2)
}"""


def network(text, numbers=None):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in (numbers or {}).items())
    return model


def draw(seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = {"w1": (WIDTH, WIDTH), "b1": (WIDTH,), "w2": (WIDTH, 10)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def mlp(seed=0, dtype=np.float32, batch="4"):
    kind = {np.float32: "float", np.float16: "float16"}[dtype]
    return network(MLP.replace("TYPE", kind).replace("BATCH", batch), draw(seed, dtype))


def profile(smallest, opt, largest):
    return {"x": ((smallest, WIDTH), (opt, WIDTH), (largest, WIDTH))}


@pytest.fixture(scope="module")
def fp32():
    return build(mlp())


@pytest.fixture(scope="module")
def fp16():
    return build(mlp(dtype=np.float16))


# --- what is in the file ---------------------------------------------------------------------------------------------


def test_product_bias_and_relu_share_a_layer_and_names_are_the_same_in_every_build(fp32):
    assert [layer.nodes for layer in fp32.layers] == [("dense_1", "bias_1", "relu_1"), ("dense_2",)]
    assert {"dense_1", "bias_1", "relu_1", "dense_2"} <= set(fp32.network_layers)
    again = build(mlp())
    assert again.layers == fp32.layers
    assert again.data == fp32.data, "a build is a function of its network"


def test_every_weight_is_in_the_file_and_lies_in_its_section(fp32):
    start, length = fp32.header.sections["WGHT"]
    for name, array in draw(0).items():
        assert start <= fp32.find(array) <= start + length - array.nbytes, name
    assert fp32.find(draw(1)["w1"]) is None


def test_new_weights_written_over_the_old_give_the_plan_that_a_build_gives(fp32):
    patched = fp32.data
    for old, new in zip(draw(0).values(), draw(1).values(), strict=True):
        patched = patched.replace(old.tobytes(), new.tobytes())
    assert patched != fp32.data
    assert patched == build(mlp(seed=1)).data


def test_fp16_halves_the_weights_and_leaves_the_fusions(fp32, fp16):
    assert len(fp16.data) < len(fp32.data)
    assert len(fp16.section("WGHT")) == pytest.approx(len(fp32.section("WGHT")) / 2, abs=512)
    assert [layer.nodes for layer in fp16.layers] == [layer.nodes for layer in fp32.layers]
    for name, array in draw(0, np.float16).items():
        assert fp16.find(array) is not None, name


def test_the_header_says_version_size_and_targets(fp32):
    import tensorrt_rtx_bindings as trt

    assert fp32.header.version == trt.__version__
    assert fp32.header.size == len(fp32.data)
    assert fp32.header.targets == ("sm80", "sm86", "sm89", "sm120", "sm121")  # Turing only when asked for
    sections = sorted(fp32.header.sections.values())
    assert set(fp32.header.sections) == {"ENGN", "WGHT"}
    assert sections[0][0] + sections[0][1] <= sections[1][0] and sum(sections[1]) <= len(fp32.data)


@pytest.mark.parametrize("target", plan.TARGETS)
def test_each_target_has_its_bit(target):
    assert build(mlp(dtype=np.float16), targets=[target]).header.targets == (target,)


def test_two_targets_make_one_plan_for_both():
    both = build(mlp(), targets=("sm80", "sm120"))
    assert both.header.targets == ("sm80", "sm120")
    assert both.data != build(mlp(), targets=("sm80",)).data


def test_what_is_no_product_becomes_source_code():
    text = "tiny (float[4, 64] x) => (float[4, 64] y) { b = Add(x, b1) y = Relu(b) }"
    tiny = build(network(text, {"b1": draw(0)["b1"]}))
    assert tiny.section("ENGN").count(b'extern "C" __global__') == 1
    assert b"\x7fELF" not in tiny.data


def test_the_largest_shape_decides_the_memory():
    def memory(*sizes):
        deep = "d (float[n, 64] x) => (float[n, 4096] y) { a = MatMul(x, w) b = Relu(a) y = Softmax(b) }"
        weights = {"w": np.ones((64, 4096), np.float32)}
        return build(network(deep, weights), profiles=profile(*sizes)).activation_bytes

    assert memory(1, 8, 512) == memory(1, 512, 512) < memory(1, 8, 1024)


def test_bytes_and_files_give_what_a_model_gives(fp32, tmp_path):
    onnx.save(mlp(), tmp_path / "mlp.onnx")
    assert build(tmp_path / "mlp.onnx").data == build(mlp().SerializeToString()).data == fp32.data


# --- what a build refuses --------------------------------------------------------------------------------------------


def odd(text):
    return network(f"odd (float[4, 64] x) => (float[4, 64] y) {{ {text} }}")


@pytest.mark.parametrize(
    "model, options, said",
    [
        (mlp(batch="n"), {}, "no optimization profile has been defined.). Give profiles="),
        (mlp(batch="n"), {"profiles": profile(1, 64, 32)}, "MIN<=OPT<=MAX"),
        (mlp(batch="n"), {"profiles": {"z": profile(1, 2, 3)["x"]}}, "names the input 'z'; the network has: x"),
        (mlp(batch="n"), {"profiles": {"x": ((1,), (2,), (3,))}}, "has 2 dimensions but profile 0 has 1"),
        (mlp(batch="n"), {"profiles": {"x": ((-1, 64), (2, 64), (3, 64))}}, "input x: Shape provided for min"),
        (mlp(batch="n"), {"profiles": {"x": ((1, 64), (2, 64))}}, "three shapes (min, opt, max)"),
        (mlp(batch="n"), {"profiles": {"x": 3}}, "three shapes (min, opt, max)"),
        (mlp(batch="n"), {"profiles": 3}, "three shapes (min, opt, max)"),
        (mlp(), {"targets": ["sm90"]}, "targets is a list of sm75, sm80"),
        (mlp(), {"targets": "sm80"}, "targets is a list"),
        (odd("[gate] y = Swiglu(x)"), {}, "node 'gate' (Swiglu): creator && \"Plugin not found"),
        (odd("[mm] y = MatMul(x, x)"), {}, "node 'mm' (MatMul): Invalid Node"),
        (b"not an ONNX file", {}, "Failed to parse the ONNX model"),
        (mlp().SerializeToString()[:5000], {}, "Failed to parse the ONNX model"),
        (b"", {}, "at least one output"),
        ("no/such/file.onnx", {}, "There is no ONNX file"),
        (42, {}, "its bytes or a path, not int"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line_that_names_it(model, options, said):
    with pytest.raises(EngineError) as caught:
        build(model, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value) and "catchCudaError" not in str(caught.value)


@pytest.mark.parametrize("wish", ["refit", "strip"])
def test_plans_for_refit_are_built_where_a_card_is_and_refused_in_words_elsewhere(fp32, wish):
    try:
        made = build(mlp(), **{wish: True})
    except EngineError as error:
        assert "weights to exchange, are built only where" in str(error)
    else:
        assert wish == "refit" or len(made.data) < len(fp32.data)


def test_a_build_that_fails_does_not_change_the_next(fp32):
    with pytest.raises(EngineError, match="Turing"):
        build(mlp(), targets=["sm75"])  # fp32 products are not for these cards
    assert build(mlp()).data == fp32.data


def test_without_the_library_one_sentence_tells_where_to_get_it(monkeypatch, tmp_path):
    for name in ("tensorrt_rtx_bindings", "tensorrt_rtx"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('hidden')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"TensorRT-RTX is not here \(hidden\).*pip install 'servinglab\[engines\]'"):
        build(mlp())


def test_a_worker_that_dies_is_told_as_such(monkeypatch, tmp_path):
    (tmp_path / "tensorrt_rtx_bindings.py").write_text("import os; os.kill(os.getpid(), 11)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match="exit code -11"):
        build(mlp())


def test_reading_this_module_loads_no_native_library():
    import subprocess

    code = "import sys, engines.plan as p; sys.exit(any('tensorrt' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- what a runtime refuses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil, reader, runtime",
    [
        (lambda data: data[:5000], "and has 5000.", "plan.header.size == blobSize failed"),
        (lambda data: data + b"\0", "or has something appended", "plan.header.size == blobSize failed"),
        (lambda data: mlp().SerializeToString(), "is no TensorRT-RTX plan", "!= 1953657974"),
        (lambda data: bytes(4000), "is no TensorRT-RTX plan", "(0 != 1953657974)"),
        (lambda data: b"", "is no TensorRT-RTX plan", "empty memory buffer"),
        (lambda data: data[:40], "its header alone has 64 bytes", "bufferSize >= minBufferSize"),
    ],
)  # fmt: skip
def test_what_is_no_whole_plan_is_refused_by_reader_and_runtime(fp32, spoil, reader, runtime):
    with pytest.raises(EngineError) as caught:
        read_header(spoil(fp32.data))
    assert reader in str(caught.value)
    assert runtime in refusals(spoil(fp32.data))[0]


def test_a_damaged_header_is_refused(fp32):
    many = fp32.data[:8] + (2**40).to_bytes(8, "little") + fp32.data[16:]
    with pytest.raises(EngineError, match="damaged"):
        read_header(many)


@pytest.mark.parametrize("step", [-1, 1])
def test_another_version_is_refused_in_words_with_both_versions(fp32, step):
    major, minor, patch, number = map(int, fp32.header.version.split("."))
    other = fp32.data[:25] + bytes([minor + step]) + fp32.data[26:]
    assert read_header(other).version == f"{major}.{minor + step}.{patch}.{number}"
    said = refusals(other)[-1]
    assert f"created with TensorRT-RTX version {major}.{minor + step}.{patch}, but" in said
    assert f"runtime is TensorRT-RTX version {major}.{minor}.{patch}." in said


def test_a_plan_that_does_not_load_does_not_run_and_says_why(fp32):
    if not refusals(fp32.data):
        pytest.skip("this machine's card runs the plan; the next test compares what it computes")
    with pytest.raises(EngineError, match="does not run here"):
        plan.run(fp32.data, {"x": np.zeros((4, WIDTH), np.float32)})


def test_a_plan_computes_what_onnx_says(fp32):
    if said := refusals(fp32.data):
        pytest.skip(f"no card that TensorRT-RTX supports: {said[0]}")
    x = np.random.default_rng(2).standard_normal((4, WIDTH)).astype(np.float32)
    numbers = draw(0)
    wanted = np.maximum(x @ numbers["w1"] + numbers["b1"], 0) @ numbers["w2"]
    np.testing.assert_allclose(plan.run(fp32.data, {"x": x})["y"], wanted, atol=0.5)  # products use TF32


def test_the_calls_of_run_exist_in_the_library():
    """``run`` needs a card; at least its names must be those of the installed version."""
    import tensorrt_rtx_bindings as trt

    for call in ("set_input_shape", "get_tensor_shape", "set_tensor_address", "execute_async_v3"):
        assert hasattr(trt.IExecutionContext, call), call
    for call in ("create_execution_context", "get_tensor_name", "get_tensor_mode", "get_tensor_dtype"):
        assert hasattr(trt.ICudaEngine, call), call


# --- figures ---------------------------------------------------------------------------------------------------------


def test_the_figure_of_fusions_has_a_row_for_each_layer_and_a_box_for_each_node(fp32):
    from servinglab.figures.plans import fusions

    operators = {node.name: node.op_type for node in mlp().graph.node}
    words = [text.get_text() for text in fusions({"fp32": fp32.layers}, operators).axes[0].texts]
    assert words.count("MatMul") == 2 and words.count("Add") == words.count("Relu") == 1
    assert {"fp32: 2 layers", "1", "2"} <= set(words) and "3" not in words
    copy = plan.Layer("__myl_MoveReplConc", "kgen", ("dense_1",))
    assert "for MatMul" in [text.get_text() for text in fusions({"x": [copy]}, operators).axes[0].texts]
    with pytest.raises(ValueError):
        fusions({"x": [plan.Layer("l", "gemm", ("other",))]}, operators)


def test_the_figure_of_sizes_writes_what_its_bars_show():
    from servinglab.figures.plans import sizes

    axes = sizes({"plan": (90e6, 4.7e6), "checkpoint": (90e6, 11_400)}).axes[0]
    labels = [text.get_text() for text in axes.texts]
    assert labels == ["90.0 MB numbers + 4.7 MB other", "90.0 MB numbers + 11.4 kB other"]
    assert [round(bar.get_width(), 4) for bar in axes.patches] == [90, 4.7, 90, 0.0114]
    with pytest.raises(ValueError):
        sizes({})
