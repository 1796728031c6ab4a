"""What convert refuses, in one sentence, and that it never leaves half a checkpoint."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from engine_models import write
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from course import cli
from engines import EngineError, shards
from engines.convert import convert
from engines.shards import load_checkpoint


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    write(folder, "llama")
    return folder


def test_a_config_that_somebody_edited_is_not_replaced(llama, tmp_path):
    made = convert(llama, tmp_path / "out")
    convert(llama, tmp_path / "out")  # ours is
    (made / "config.json").write_text(text := (made / "config.json").read_text().replace("float16", "bfloat16"))
    os.utime(made / "config.json", (later := (made / "rank0.safetensors").stat().st_mtime + 60, later))
    with pytest.raises(EngineError, match="config.json was edited after the conversion; move it away"):
        convert(llama, tmp_path / "out")
    assert (made / "config.json").read_text() == text


@pytest.fixture
def source(llama, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(llama, tmp_path / "source"))


def edit(folder: Path, **settings) -> None:
    """Change config.json; None takes a key away."""
    config = {**json.loads((folder / "config.json").read_text()), **settings}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def refused(source: Path, out: Path, **options) -> str:
    """The message of convert, which must be one sentence and leave nothing beside the source."""
    before = sorted(p for p in out.parent.rglob("*"))
    with pytest.raises(EngineError) as caught:
        convert(source, out, **options)
    message = str(caught.value)
    assert "\n" not in message and message.endswith((".", "?", ")."))
    assert sorted(p for p in out.parent.rglob("*")) == before
    return message


@pytest.mark.parametrize(
    "options,said",
    [
        ({"dtype": "fp16"}, "one of float16, bfloat16, float32, not 'fp16'"),
        ({"dtype": "flaot16"}, "Did you mean 'float16'?"),
        ({"weight_only": "int3"}, "Did you mean 'int"),
        ({"family": "lama"}, "Did you mean 'llama'?"),
        ({"tp_size": 0}, "at least 1"),
        ({"tp_size": True}, "at least 1"),
        ({"tp_size": 2.0}, "at least 1"),
        ({"tp_size": 3}, "tp_size 3 does not divide the attention heads of this model, 8"),
        ({"tp_size": 16}, "tp_size 16 does not divide the attention heads"),
    ],
)
def test_wrong_arguments(llama, tmp_path, options, said):
    assert said in refused(llama, tmp_path / "out", **options)


@pytest.mark.parametrize(
    "settings,options,said",
    [
        ({"intermediate_size": 100}, {"tp_size": 8}, "tp_size 8 does not divide the MLP width of this model, 100"),
        ({"num_key_value_heads": 6, "num_attention_heads": 12}, {"tp_size": 4}, "does not divide the KV heads"),
        ({"num_key_value_heads": 3, "num_attention_heads": 12}, {"tp_size": 4}, "does not divide the KV heads"),
        ({"num_key_value_heads": 3}, {}, "8 attention heads cannot share 3 KV heads"),
        ({"hidden_size": None}, {}, "has no hidden_size"),
        ({"hidden_size": "64"}, {}, "says '64' for hidden_size"),
        ({"num_hidden_layers": 0}, {}, "says 0 for num_hidden_layers"),
        ({"rms_norm_eps": "small"}, {}, "says 'small' for rms_norm_eps"),
        ({"hidden_act": "mish"}, {}, "says 'mish' for hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, {}, "rotary scaling 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, {}, "no low_freq_factor"),
        ({"rope_parameters": "llama3"}, {}, "rope"),
        ({"quantization_config": {"bits": 4}}, {}, "quantized already"),
        ({"head_dim": 16}, {}, "has shape [64, 64], but its config.json makes it [128, 64]"),
        ({"vocab_size": 300}, {}, "has shape [301, 64], but its config.json makes it [300, 64]"),
        ({"num_hidden_layers": 3}, {}, "no tensor 'model.layers.2."),
        ({"num_hidden_layers": 10**9}, {}, "says 1000000000 layers, but there are"),
        ({"rope_theta": 10**400}, {}, "must be a finite number above 0"),
        ({"rms_norm_eps": float("inf")}, {}, "must be a finite number above 0"),
        ({"rope_parameters": {"rope_type": ["x"]}}, {}, "rotary scaling"),
        ({"num_hidden_layers": 1}, {}, "it is another kind of model"),
        ({"attention_bias": True}, {}, "no tensor 'model.layers.0.self_attn.q_proj.bias'"),
        ({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}, {}, "TensorRT-LLM 0.13.0 or newer"),
        ({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}, {}, "TensorRT-LLM 0.19.0 or newer"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, {}, "TensorRT-LLM 1.0.0 or newer"),
        ({"model_type": "mistral", "architectures": ["MistralForCausalLM"]}, {}, "family='llama'"),
        ({"model_type": "phantom", "architectures": ["PhantomForCausalLM"]}, {}, "only llama, gpt2, gemma"),
        ({"architectures": ["LlamaForSequenceClassification"]}, {}, "LlamaForSequenceClassification"),
        ({"architectures": "LlamaForCausalLM"}, {}, "LlamaForCausalLM"),
        ({"model_type": None}, {}, "is a None model"),
        ({}, {"family": "gemma"}, "is a 'llama' model"),
        ({"model_type": "mistral"}, {"family": "gpt2"}, "it is another kind of model"),
    ],
)
def test_a_config_that_does_not_fit(source, tmp_path, settings, options, said):
    edit(source, **settings)
    assert said in refused(source, tmp_path / "out", **options)


def test_mistral_converts_as_llama(source, tmp_path):
    edit(source, model_type="mistral", architectures=["MistralForCausalLM"])
    checkpoint = load_checkpoint(convert(source, tmp_path / "out", family="llama"))
    assert checkpoint.config["architecture"] == "LlamaForCausalLM"


def test_tensors_of_another_model(source, tmp_path):
    """Qwen2 has biases on q, k and v only; Gemma 2 has more norms. Neither may be dropped in silence."""
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    save_file(tensors, source / "model.safetensors")
    assert "'model.layers.0.self_attn.q_proj.bias'" in refused(source, tmp_path / "out")


@pytest.mark.parametrize("keep", [0, 7, 500, -1])
def test_a_file_that_is_cut_short(source, tmp_path, keep):
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "is damaged or cut short" in refused(source, tmp_path / "out")


def test_a_pointer_of_git_lfs(source, tmp_path):
    (source / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "git lfs pull" in refused(source, tmp_path / "out")


def test_only_a_pickle(source, tmp_path):
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    assert "save_pretrained" in refused(source, tmp_path / "out")


def test_no_weights_at_all(source, tmp_path):
    (source / "model.safetensors").unlink()
    assert "no weights to convert" in refused(source, tmp_path / "out")


@pytest.mark.parametrize(
    "index,said",
    [
        ({"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}, "is missing"),
        ({"weight_map": {"lm_head.weight": "../elsewhere/model.safetensors"}}, "no weight_map"),
        ({"weight_map": {"lm_head.weight": 1, "model.norm.weight": "model.safetensors"}}, "no weight_map"),
        ({"weight_map": {"lm_head.weight": ["model.safetensors"]}}, "no weight_map"),
        ({"weight_map": {"lm_head.weight": ".."}}, "no weight_map"),
        ({"weight_map": {"lm_head.weight": "folder.safetensors"}}, "damaged or cut short"),
        ({"weight_map": {}}, "no weight_map"),
        ([], "not an object"),
    ],
)
def test_a_wrong_index(source, tmp_path, index, said):
    (source / "folder.safetensors").mkdir()
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    assert said in refused(source, tmp_path / "out")


def test_tensors_of_a_wrong_type(source, tmp_path):
    tensors = load_file(source / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    save_file(tensors, source / "model.safetensors")
    assert "'model.norm.weight' is of type I8" in refused(source, tmp_path / "out")


@pytest.mark.parametrize("value", [70000.0, float("nan"), float("inf")])
def test_values_that_float16_cannot_hold(source, tmp_path, value):
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][95, 63] = value
    save_file(tensors, source / "model.safetensors")
    said = refused(source, tmp_path / "out", tp_size=2)
    assert "'model.layers.1.mlp.up_proj.weight'" in said and "float16" in said
    if value == 70000.0:
        convert(source, tmp_path / "out", dtype="bfloat16")


def test_a_source_that_is_not_there(tmp_path):
    refused(tmp_path / "nowhere", tmp_path / "out")


@pytest.mark.parametrize("name", ["rank0.engine", "model.safetensors", "notes.txt"])
def test_a_folder_with_other_content_is_left_alone(llama, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    (tmp_path / "out" / "config.json").write_text("{}")
    assert name in refused(llama, tmp_path / "out")
    assert (tmp_path / "out" / name).read_text() == "mine"


def test_the_source_is_no_place_for_the_checkpoint(source):
    assert "holds something else" in refused(source, source)


def test_a_config_of_another_program_is_not_overwritten(llama, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text('{"model_type": "llama"}')
    assert "a config.json of something else" in refused(llama, tmp_path / "out")


def test_a_file_where_the_folder_should_be(llama, tmp_path):
    (tmp_path / "out").write_text("mine")
    assert "is a file or a link" in refused(llama, tmp_path / "out")
    assert "cannot be written" in refused(llama, tmp_path / "out" / "below")


def test_an_earlier_checkpoint_is_replaced_as_a_whole(llama, tmp_path):
    convert(llama, tmp_path / "out", tp_size=4)
    convert(llama, tmp_path / "out", tp_size=1)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "rank0.safetensors"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_and_new_parents_are_fine(llama, tmp_path):
    (tmp_path / "empty").mkdir()
    convert(llama, tmp_path / "empty")
    out = convert(llama, tmp_path / "a" / "b [c]")
    modes = {p.stat().st_mode & 0o777 for p in out.iterdir()}
    assert len(modes) == 1  # the shards are as readable as the config


def test_a_failure_keeps_the_earlier_checkpoint(llama, source, tmp_path):
    out = convert(llama, tmp_path / "out")
    before = (out / "rank0.safetensors").read_bytes()
    edit(source, num_hidden_layers=3)
    refused(source, out)
    assert (out / "rank0.safetensors").read_bytes() == before


def test_a_disk_that_is_too_small(llama, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(shards.shutil, "disk_usage", lambda _: usage)
    assert "its disk has 0.00 GB left" in refused(llama, tmp_path / "out")


def python(code: str, **kwargs) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **kwargs)


def test_a_write_that_the_system_refuses(llama, tmp_path):
    """The second half of a shard does not fit under a real limit of the kernel."""
    done = python(f"""
        import resource
        from engines.convert import convert
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        convert({str(llama)!r}, {str(tmp_path / "out")!r})
    """)
    last = done.stderr.strip().splitlines()[-1]
    assert re.match(r".*EngineError: \S+ cannot be written: ", last), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage,said",
    [
        (lambda out: (out / "rank1.safetensors").unlink(), "rank1.safetensors is missing"),
        (lambda out: os.truncate(out / "rank1.safetensors", 1000), "damaged or cut short"),
        (lambda out: (out / "config.json").unlink(), "has no config.json"),
        (lambda out: (out / "config.json").write_text("{"), "cannot be read"),
        (lambda out: (out / "config.json").write_text('{"model_type": "llama"}'), "convert it first"),
        (lambda out: (out / "config.json").write_text('{"pretrained_config": {}}'), "is an engine"),
        (lambda out: edit(out, mapping={"world_size": 4, "tp_size": 2, "pp_size": 2}), "pipeline"),
    ],
)
def test_what_load_checkpoint_refuses(llama, tmp_path, damage, said):
    out = convert(llama, tmp_path / "out", tp_size=2)
    damage(out)
    with pytest.raises(EngineError, match=said):
        load_checkpoint(out)


def course(*words: str):
    return CliRunner().invoke(cli.app, ["convert", *map(str, words)])


NVIDIAS = "(on a GPU, TensorRT-LLM 0.12.0 to 1.3.0rc20: trtllm-build)"


@pytest.mark.parametrize("family", ["gpt2", "gemma"])
def test_the_command_names_the_versions_that_take_the_checkpoint(family, tmp_path):
    write(tmp_path / "hf", family)
    done = course("--model_dir", tmp_path / "hf", "--output_dir", tmp_path / "out")
    assert done.exit_code == 0 and done.output.splitlines()[-1] == NVIDIAS, done.output


def test_the_command_takes_the_flags_of_nvidias_converter(llama, tmp_path):
    out = tmp_path / "my out"
    done = course("--model_dir", llama, "--output_dir", out, "--tp_size", "2", "--dtype=bfloat16", "--workers", "2")
    assert done.exit_code == 0, done.output
    *ranks, following, on_a_gpu = done.output.strip().splitlines()
    assert [re.sub(r"\d+\.\d", "N", line) for line in ranks] == [f"{out}/rank{n}.safetensors  N MB" for n in range(2)]
    flags = f"--checkpoint_dir '{out}' --output_dir '{out}-engine'"
    assert following == f"next: course build {flags}" and on_a_gpu == NVIDIAS
    assert load_checkpoint(out).config["dtype"] == "bfloat16"
    course("--model_dir", llama, "--output_dir", tmp_path / "auto")
    assert load_checkpoint(tmp_path / "auto").config["dtype"] == "float16"  # what NVIDIA's auto makes of float32


@pytest.mark.parametrize(
    "words,said",
    [
        (["--smoothquant", "0.5"], "--smoothquant is a flag of NVIDIA's converter"),
        (["--output-dir", "x"], "has no flag --output-dir. Did you mean '--output_dir'?"),
        (["--tp_size", "two"], "--tp_size needs a whole number, not 'two'"),
        (["--pp_size", "2"], "--pp_size above 1 is not honoured"),
        (["--use_weight_only", "--weight_only_precision", "int4_awq"], "weight_only must be one of int8, int4"),
        (["--model_dir"], "--model_dir needs a value"),
    ],
)
def test_the_command_refuses_by_name(llama, tmp_path, words, said):
    done = course("--model_dir", llama, *words)
    assert isinstance(done.exception, EngineError) and said in str(done.exception)
