"""What is in an engine, and what two builds do differently."""

from __future__ import annotations

import json

import pytest
from engine_helpers import TENSORRT, TRTLLM, engine_folder, rewrite
from tiny_models import write_checkpoint
from typer.testing import CliRunner

from course.cli import app
from engines import flags
from engines.inspection import diff, inspect
from engines.versions import containers, table


@pytest.fixture
def pair(tmp_path):
    """Two builds of one model, with engine files of the sizes that float16 and int8 have, in thousandths."""
    sizes = {"plain": 13_479_000, "tuned": 7_021_000}
    return [engine_folder(tmp_path / which, which=which, size=size) for which, size in sizes.items()]


def test_an_engine_folder_is_laid_open(tmp_path):
    found = inspect(engine_folder(tmp_path / "engine", ranks=2, size=5000))
    assert found["kind"] == "engine" and (found["trtllm"], found["tensorrt"]) == (TRTLLM, TENSORRT)
    assert found["parameters"] == 6_738_415_616 and found["dtype"] == "float16" and found["quant_algo"] is None
    assert found["limits"] == {"max_batch_size": 64, "max_input_len": 1024, "max_seq_len": 4096,
                               "max_num_tokens": 8192, "max_beam_width": 1}  # fmt: skip
    assert found["plugins"]["gemm_plugin"] == "float16" and found["plugins"]["context_fmha"] is True
    assert not {"lora_plugin", "streamingllm", "dtype"} & found["plugins"].keys()  # what is off is left out
    assert found["options"]["kv_cache_type"] == "paged" and "max_draft_len" not in found["options"]
    assert "speculative_decoding_mode" not in found["options"]  # 1 means none
    assert found["files"][1] == {"name": "rank1.engine", "size_bytes": 5000, "product": "TensorRT", "version": TENSORRT}
    assert found["size_bytes"] == 10_000
    assert json.loads(json.dumps(found)) == found


def test_a_checkpoint_is_laid_open(tmp_path):
    from engines.convert import convert

    write_checkpoint(tmp_path / "hf", hidden_size=128, intermediate_size=256, head_dim=64)
    checkpoint = convert(tmp_path / "hf", tmp_path / "checkpoint", tp_size=2, weight_only="int8")
    found = inspect(checkpoint)
    assert (found["kind"], found["quant_algo"], found["world_size"]) == ("checkpoint", "W8A16", 2)
    assert (found["trtllm"], found["plugins"], found["limits"]) == (None, {}, {})
    sizes = [path.stat().st_size for path in sorted(checkpoint.glob("*.safetensors"))]
    assert [file["size_bytes"] for file in found["files"]] == sizes


def test_a_model_that_the_estimate_does_not_know_is_still_laid_open(tmp_path):
    found = inspect(engine_folder(tmp_path / "engine", architecture="MixtralForCausalLM"))
    assert found["architecture"] == "MixtralForCausalLM" and found["parameters"] is None


# two builds


def test_a_comparison_names_every_difference_once_and_the_weightiest_first(pair):
    found = diff(*pair)
    assert [(d.setting, d.a, d.b) for d in found] == [
        ("quant_algo", None, "W8A16"),
        ("size_bytes", 13_479_000, 7_021_000),
        ("max_batch_size", 64, 8),
        ("max_seq_len", 4096, 2048),
        ("max_num_tokens", 8192, 2048),
        ("max_beam_width", 1, 4),
        ("gemm_plugin", "float16", None),
        ("weight_only_quant_matmul_plugin", None, "float16"),
        ("gather_context_logits", False, True),
        ("multiple_profiles", False, True),
        ("opt_num_tokens", 64, 8),
    ]
    assert all(d.meaning for d in found)
    assert [(d.setting, d.a, d.b) for d in diff(*pair[::-1])] == [(d.setting, d.b, d.a) for d in found]
    assert diff(pair[0], pair[0]) == []


def test_versions_come_first_and_what_only_one_has_is_shown(tmp_path):
    old = engine_folder(tmp_path / "old", version="0.9.0", tensorrt="10.0.1.6", some_new_switch=None)
    new = engine_folder(tmp_path / "new")
    rewrite(new, "build_config", "zeta", value=3)
    rewrite(new, "build_config", "alpha", value=False)  # off here, not there at all: the same
    rewrite(old, "build_config", "kv_cache_type", value="PAGED")  # as older versions wrote it
    found = [(d.setting, d.a, d.b) for d in diff(old, new)]
    assert found == [("trtllm", "0.9.0", TRTLLM), ("tensorrt", "10.0.1.6", TENSORRT), ("zeta", "not set", 3)]


def test_every_setting_of_the_order_has_a_meaning():
    known = flags.known("trtllm-build", containers()[0].trtllm)
    settings = table("settings")
    assert len(set(settings["order"])) == len(settings["order"])
    assert set(settings["meaning"]) <= set(settings["order"])
    for name in settings["order"]:
        assert name in settings["meaning"] or known[f"--{name}"].explain


# the commands


def test_the_commands_show_tables(pair):
    runner = CliRunner()
    shown = runner.invoke(app, ["engine", "inspect", str(pair[0])])
    assert shown.exit_code == 0 and "6,738,415,616" in shown.stdout and "13.5 MB" in shown.stdout
    text = runner.invoke(app, ["engine", "diff", *map(str, pair)]).stdout
    assert text.index("quant_algo") < text.index("max_batch_size") < text.index("opt_num_tokens")
    rewrite(pair[1], "build_config", "zeta", value=3)
    rows = runner.invoke(app, ["engine", "diff", *map(str, pair)]).stdout.splitlines()
    assert [row.split()[1:3] for row in rows if row.startswith(("gemm_plugin", "quant_algo"))] == [
        ["off", "W8A16"], ["float16", "off"]]  # fmt: skip
    assert [row.split()[1:4] for row in rows if row.startswith("zeta")] == [["not", "set", "3"]]  # not known to be off
    same = runner.invoke(app, ["engine", "diff", str(pair[0]), str(pair[0])])
    assert same.exit_code == 0 and "say the same" in same.stdout


def test_a_setting_of_a_foreign_file_is_no_markup(pair):
    file = pair[0] / "config.json"
    config = json.loads(file.read_text())
    config["build_config"]["[/red]"] = 1
    file.write_text(json.dumps(config))
    shown = CliRunner().invoke(app, ["engine", "diff", *map(str, pair)])
    assert shown.exit_code == 0 and "[/red]" in shown.stdout
