"""Real engines built with TensorRT-RTX on this machine's CPU: what is in the file, what is refused, in which words."""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from engines import EngineError, plan
from engines.plan import build, refusals
from servinglab.figures import engines as figures

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


# --- what is in the file ---------------------------------------------------------------------------------------------


def test_product_bias_and_relu_share_a_layer_and_a_build_is_a_function_of_its_network(fp32):
    nodes = [re.findall(r"\[ONNX Layer: (\w+)\]", layer) for layer in fp32.layers]
    assert nodes == [["dense_1", "bias_1", "relu_1"], ["dense_2"]]
    assert all(array.tobytes() in fp32.data for array in draw(0).values()), "the weights are in the file"
    again = build(mlp())
    assert again.data == fp32.data and again.layers == fp32.layers


def test_the_header_says_version_and_targets(fp32):
    import tensorrt_rtx_bindings as trt

    assert fp32.data[:4] == plan.MAGIC and fp32.version == trt.__version__
    assert fp32.targets == ("sm80", "sm86", "sm89", "sm120", "sm121")  # Turing only when asked for
    for target in plan.TARGETS[:2]:
        assert build(mlp(dtype=np.float16), targets=[target]).targets == (target,)
    both = build(mlp(), targets=("sm80", "sm120"))
    assert both.targets == ("sm80", "sm120") and both.data != fp32.data


def test_the_largest_shape_decides_the_memory(tmp_path):
    deep = "d (float[n, 64] x) => (float[n, 4096] y) { a = MatMul(x, w) b = Relu(a) y = Softmax(b) }"
    onnx.save(network(deep, {"w": np.ones((64, 4096), np.float32)}), tmp_path / "deep.onnx")

    def memory(*sizes):
        return build(tmp_path / "deep.onnx", profiles=profile(*sizes)).activation_bytes

    assert memory(1, 8, 512) == memory(1, 512, 512) < memory(1, 8, 1024)


# --- what is refused, in the library's own words ---------------------------------------------------------------------


def odd(text):
    return network(f"odd (float[4, 64] x) => (float[4, 64] y) {{ {text} }}")


@pytest.mark.parametrize(
    "model, options, said",
    [
        (mlp(batch="n"), {}, "no optimization profile has been defined."),
        (mlp(batch="n"), {"profiles": profile(1, 64, 32)}, "MIN<=OPT<=MAX"),
        (mlp(batch="n"), {"profiles": {"x": ((1,), (2,), (3,))}}, "has 2 dimensions but profile 0 has 1"),
        (mlp(), {"targets": ["sm90"]}, "targets is a list of sm75, sm80"),
        (mlp(), {"targets": ["sm75"]}, "Turing"),  # fp32 products are not for these cards
        (odd("[gate] y = Swiglu(x)"), {}, "gate (Swiglu): creator && \"Plugin not found"),
        ("no/such/file.onnx", {}, "There is no ONNX file"),
    ],
)  # fmt: skip
def test_bad_input_gets_the_reason(model, options, said):
    with pytest.raises(EngineError) as caught:
        build(model, **options)
    assert said in str(caught.value)


def test_a_plan_for_refit_is_built_where_a_card_is_and_refused_elsewhere(fp32):
    try:
        made = build(mlp(), refit=True)
    except EngineError as error:
        assert "CUDA_SUCCESS" in str(error)
    else:
        assert made.data != fp32.data


def test_a_worker_that_dies_or_lacks_the_library_is_told_as_such(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for code, said in (("raise ImportError('hidden')", "hidden. Where it is not installed"),
                       ("import os; os.kill(os.getpid(), 11)", "exit code -11")):  # fmt: skip
        (tmp_path / "tensorrt_rtx_bindings.py").write_text(code)
        with pytest.raises(EngineError, match=said):
            build(mlp())


def test_what_is_no_whole_plan_is_refused_by_the_runtime(fp32):
    for spoilt, said in ((fp32.data[:5000], "plan.header.size == blobSize failed"), (bytes(4000), "(0 != 1953657974)")):
        assert said in refusals(spoilt)[0]
    for step in (-1, 1):
        said = refusals(fp32.data[:25] + bytes([fp32.data[25] + step]) + fp32.data[26:])[-1]
        assert "created with TensorRT-RTX version" in said
        assert f"runtime is TensorRT-RTX version {fp32.version[:5]}" in said


# --- figures ---------------------------------------------------------------------------------------------------------


def test_the_figure_of_fusions_has_a_row_for_each_layer_and_a_box_for_each_node(fp32):
    operators = {node.name: node.op_type for node in mlp().graph.node}
    words = [text.get_text() for text in figures.fusions({"fp32": fp32.layers}, operators).axes[0].texts]
    assert words.count("MatMul") == 2 and words.count("Add") == words.count("Relu") == 1
    assert {"fp32: 2 layers", "1", "2"} <= set(words) and "3" not in words
    copy = "Name: __myl_MoveReplConc, LayerType: kgen, Inputs: [], Metadata: [ONNX Layer: dense_1]"
    assert "for MatMul" in [text.get_text() for text in figures.fusions({"x": [copy]}, operators).axes[0].texts]


def test_the_figure_of_sizes_writes_what_its_bars_show():
    axes = figures.sizes({"plan": (90e6, 4.7e6), "checkpoint": (90e6, 11_400)}).axes[0]
    assert [text.get_text() for text in axes.texts] == ["90.0 MB + 4.7 MB", "90.0 MB + 11.4 kB"]
    assert [round(bar.get_width(), 4) for bar in axes.patches] == [90, 4.7, 90, 0.0114]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(figures.CONTENTS)
