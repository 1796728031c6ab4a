"""The figures of notebooks 01 and 02 show what they were given."""

from __future__ import annotations

from engines.memory import estimate
from plots import checkpoints
from servinglab.figures import engines as figures

LAYERS = (
    "Name: FcAddRelu, LayerType: runtime_fusion, Metadata: [ONNX Layer: one][ONNX Layer: bias][ONNX Layer: relu]",
    "Name: two_gemm, LayerType: gemm, Metadata: [ONNX Layer: two]",
    "Name: MoveReplConc, LayerType: kgen, Metadata: [ONNX Layer: one]",
)


def test_the_figure_of_fusions_has_a_row_for_each_layer_and_a_box_for_each_node():
    operators = {"one": "MatMul", "bias": "Add", "relu": "Relu", "two": "MatMul"}
    axes = figures.fusions({"fp32": LAYERS[:2], "fp16": LAYERS}, operators).axes[0]
    words = [text.get_text() for text in axes.texts]
    assert words.count("MatMul") == 4 and words.count("Add") == words.count("Relu") == 2
    assert words.count("for MatMul") == 1, "a layer that only prepares tensors"
    assert {"fp32: 2 layers", "fp16: 3 layers", "3"} <= set(words) and "4" not in words
    assert words.index("MatMul") < words.index("Add") < words.index("Relu")


def test_the_figure_of_sizes_writes_what_its_bars_show():
    axes = figures.sizes({"plan": (90e6, 4.7e6), "checkpoint": (90e6, 11_400)}).axes[0]
    assert [text.get_text() for text in axes.texts] == ["90.0 MB + 4.7 MB", "90.0 MB + 11.4 kB"]
    assert [round(bar.get_width(), 4) for bar in axes.patches] == [90, 90, 4.7, 0.0114]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(figures.CONTENTS)


def test_the_bars_of_the_figure_are_the_estimates():
    both = {"small": estimate("gpt2-medium", gpu="24gb"), "large": estimate("llama-7b", max_batch_size=64, gpu="24gb")}
    (axes,) = figures.memory_bars(both).axes
    lengths = {0: 0.0, 1: 0.0}
    for bar in axes.patches:
        lengths[round(bar.get_y() + bar.get_height() / 2)] += bar.get_width()
    assert "L4 24 GB: 23.6 GB" in {text.get_text() for text in axes.texts}
    assert [round(lengths[row], 6) for row in (0, 1)] == [round(e.total_bytes / 1e9, 6) for e in both.values()]
    assert min(text.get_fontsize() for text in axes.texts) >= 9


def test_a_line_joins_each_tensor_with_those_that_hold_it():
    was = {"model.embed_tokens.weight": (7, 4), "model.layers.0.mlp.up_proj.weight": (6, 4)}
    now = {"transformer.layers.0.mlp.gate.weight": (6, 4), "lm_head.weight": (7, 4)}
    pairs = dict(zip(was, reversed(now), strict=True))
    axes = checkpoints.renamed(was, now, pairs.items()).axes[0]
    rows = {text.get_text().split()[0]: round(text.get_position()[1], 3) for text in axes.texts}
    joined = {tuple(round(y, 3) for y in line.get_ydata()) for line in axes.lines}
    assert joined == {(rows["embed_tokens"], rows["lm_head"]), (rows["mlp.up_proj"], rows["mlp.gate"])}
    assert "mlp.gate  [6, 4]" in {text.get_text() for text in axes.texts}


def test_what_is_missing_of_an_answer_is_drawn_and_a_refusal_is_written():
    jobs, got = {"cut": (100, 80, 1), "refused": (5, 40, 3)}, {"cut": 28, "refused": "too many beams; ask for one"}
    axes = checkpoints.served(jobs, got, 128).axes[0]
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars == [(0, 100), (100, 28), (128, 52), (0, 5), (5, 0), (5, 40)]
    assert [text.get_text() for text in axes.texts] == ["28 of 80 tokens", "too many beams"]
