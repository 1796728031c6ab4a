"""The export that notebook 12 tells of: TensorRT Edge-LLM's exporter on the default model, on the CPU."""

from __future__ import annotations

import json
import subprocess

import onnx
import pytest

from servinglab import assets
from servinglab.root import find_root


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_graph_has_one_attention_plugin_for_each_layer_of_the_checkpoint(tmp_path):
    exporter = find_root() / ".edge" / "bin" / "tensorrt-edgellm-export"
    if not exporter.is_file():
        pytest.skip("TensorRT Edge-LLM is not installed; run make edge")
    done = subprocess.run([exporter, assets.resolve("smollm2"), tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]

    config = json.loads((assets.resolve("smollm2") / "config.json").read_text())
    graph = onnx.load(tmp_path / "llm" / "model.onnx", load_external_data=False).graph
    nodes = [node for node in graph.node if node.domain == "trt_edgellm" and node.op_type == "AttentionPlugin"]
    assert len(nodes) == config["num_hidden_layers"] == 30
    for node in nodes:
        told = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        assert told["num_q_heads"] == config["num_attention_heads"]
        assert told["num_kv_heads"] == config["num_key_value_heads"]
        assert told["head_size"] == config["hidden_size"] // config["num_attention_heads"]
    caches = [each.name for each in graph.input if "past_key_value" in each.name]
    assert len(caches) == len(nodes), "a KV cache for each"
