"""Recipes: every command line they can print is one that its version takes; some are written out by hand."""

from __future__ import annotations

import argparse
import functools
import itertools
import shlex

import pytest
from typer.testing import CliRunner

from course.cli import app
from engines import EngineError, flags, recipes
from engines.footprint import DTYPES, WEIGHT_ONLY, from_config
from engines.memory import recipe_model
from engines.recipes import recipe
from engines.versions import containers
from engines.versions import version as by_age

VERSIONS = sorted({c.trtllm for c in containers()}, key=by_age)


class Strict(argparse.ArgumentParser):
    def error(self, message):
        raise AssertionError(message)


@functools.cache
def parser(program, version):
    """A real argparse parser of what the table says about a program, as upstream builds its own."""
    made = Strict(allow_abbrev=False, add_help=False)
    if program in ("hf", "huggingface-cli"):
        made.add_argument("download", choices=["download"])
        made.add_argument("repo")
        made.add_argument("files", nargs="*")
    for row in {id(row): row for row in flags.known(program, version).values()}.values():
        if row.kind == "switch":
            made.add_argument(*row.spellings, action="store_true")
            continue
        made.add_argument(
            *row.spellings, type={"int": int, "float": float}.get(row.kind, str), required=row.required,
            choices=row.choices_for(version), nargs={"value?": "?", "words": "+"}.get(row.kind),
        )  # fmt: skip
    return made


def splits(name):
    model = recipe_model(name)
    heads = from_config(model["config"], name)["num_attention_heads"]
    return sorted({1, model["tp_size"], *(t for t in (2, 3, 4, 8) if heads % t == 0)})


@pytest.mark.parametrize("version", [*VERSIONS, "0.18.1", "1.3.0rc3"])
@pytest.mark.parametrize("name", recipes.NAMES)
def test_every_command_line_is_one_that_its_version_takes(name, version):
    for tp, dtype, weights in itertools.product(splits(name), DTYPES, (None, *WEIGHT_ONLY)):
        made = recipe(name, trtllm=version, tp_size=tp, dtype=dtype, weight_only=weights)
        assert len(made.commands) == 3
        for command in made.commands:
            words = command.words()
            head = 2 if command.program.endswith(".py") else 1
            found = parser(command.program, version).parse_args(words[head:])
            assert not any(word.startswith("/") for word in words[head:]), "paths are relative"
        build, convert = vars(found), made.commands[1]
        assert build["checkpoint_dir"] == convert.writes
        assert build["output_dir"] == made.commands[2].writes
        if name.startswith("gemma"):  # of prompt and answer together, in whichever words
            assert (build.get("max_seq_len") or build["max_input_len"] + build["max_output_len"]) == 3100


@pytest.mark.parametrize("name", recipes.NAMES)
def test_a_shell_reads_the_text_as_the_words(name):
    for version in VERSIONS:
        for command in recipe(name, trtllm=version, weight_only="int8").commands:
            assert shlex.split(command.text().replace("\\\n", " ")) == command.words()


def test_the_parser_of_this_test_refuses_what_a_version_lacks():
    for version, line in (("0.12.0", "--max_output_len 1"), ("0.10.0", "--gemm_plugin auto"), ("1.2.1", "--tp_size 2")):
        with pytest.raises(AssertionError):
            parser("trtllm-build", version).parse_args(line.split())


# Written by hand after the guides of tensorrtllm_backend (README, docs/llama.md, docs/gemma.md) of each version.
BY_HAND = [
    ("gpt2-medium", "0.9.0", {}, 1,
     "python3 /app/examples/gpt/convert_checkpoint.py --model_dir checkpoints/gpt2-medium/hf"
     " --output_dir checkpoints/gpt2-medium/float16-tp1 --dtype float16"),
    ("gpt2-medium", "0.9.0", {}, 2,
     "trtllm-build --checkpoint_dir checkpoints/gpt2-medium/float16-tp1 --output_dir engines/gpt2-medium/float16-tp1"
     " --gpt_attention_plugin float16 --gemm_plugin float16 --remove_input_padding enable --paged_kv_cache enable"),
    ("gemma-2b-it", "0.9.0", {}, 2,
     "trtllm-build --checkpoint_dir checkpoints/gemma-2b-it/bfloat16-tp1 --output_dir engines/gemma-2b-it/bfloat16-tp1"
     " --gemm_plugin bfloat16 --gpt_attention_plugin bfloat16 --max_batch_size 8 --max_input_len 3000"
     " --max_output_len 100"),
    ("llama-7b", "0.12.0", {}, 2,
     "trtllm-build --checkpoint_dir checkpoints/llama-7b/float16-tp1 --output_dir engines/llama-7b/float16-tp1"
     " --gpt_attention_plugin float16 --context_fmha enable --gemm_plugin float16 --remove_input_padding enable"
     " --max_batch_size 64 --paged_kv_cache enable"),
    ("llama-7b-tp4", "0.16.0", {}, 0,
     "huggingface-cli download meta-llama/Llama-2-7b-hf --exclude *.bin --local-dir checkpoints/llama-7b/hf"),
    ("llama-7b-tp4", "0.16.0", {}, 1,
     "python3 /app/examples/llama/convert_checkpoint.py --model_dir checkpoints/llama-7b/hf"
     " --output_dir checkpoints/llama-7b/float16-tp4 --dtype float16 --tp_size 4 --workers 4"),
    ("llama-7b-tp4", "0.16.0", {}, 2,
     "trtllm-build --checkpoint_dir checkpoints/llama-7b/float16-tp4 --output_dir engines/llama-7b/float16-tp4"
     " --gpt_attention_plugin float16 --context_fmha enable --gemm_plugin float16 --remove_input_padding enable"
     " --max_batch_size 64 --kv_cache_type paged --workers 4"),
    ("gemma-2b", "0.20.0", {"tp_size": 2, "weight_only": "int8"}, 1,
     "python3 /app/examples/models/core/gemma/convert_checkpoint.py --ckpt-type hf"
     " --model-dir checkpoints/gemma-2b/hf --dtype bfloat16 --world-size 2 --use-weight-only-with-precision int8"
     " --output-model-dir checkpoints/gemma-2b/bfloat16-int8-tp2"),
    ("gemma-2b", "0.20.0", {}, 2,
     "trtllm-build --checkpoint_dir checkpoints/gemma-2b/bfloat16-tp1 --output_dir engines/gemma-2b/bfloat16-tp1"
     " --gemm_plugin auto --max_batch_size 8 --max_input_len 3000 --max_seq_len 3100"),
    ("smollm2", "1.2.1", {"weight_only": "int4", "tp_size": 3, "dtype": "float16"}, 1,
     "python3 /app/examples/models/core/llama/convert_checkpoint.py --model_dir checkpoints/smollm2/hf"
     " --output_dir checkpoints/smollm2/float16-int4-tp3 --dtype float16 --tp_size 3 --workers 3"
     " --use_weight_only --weight_only_precision int4"),
    ("smollm2", "0.18.2", {}, 2,  # what notebooks 08 and 09 ask of the server
     "trtllm-build --checkpoint_dir checkpoints/smollm2/bfloat16-tp1 --output_dir engines/smollm2/bfloat16-tp1"
     " --gpt_attention_plugin bfloat16 --context_fmha enable --gemm_plugin bfloat16 --remove_input_padding enable"
     " --max_batch_size 64 --max_beam_width 8 --kv_cache_type paged"
     " --gather_context_logits --gather_generation_logits"),
    ("smollm2", "1.2.1", {}, 2,
     "trtllm-build --checkpoint_dir checkpoints/smollm2/bfloat16-tp1 --output_dir engines/smollm2/bfloat16-tp1"
     " --gpt_attention_plugin bfloat16 --context_fmha enable --gemm_plugin bfloat16 --remove_input_padding enable"
     " --max_batch_size 64 --max_beam_width 8 --kv_cache_type paged --gather_context_logits"),
    ("gpt2-medium", "1.2.1", {"extra": {"--max_batch_size": "16", "--max_beam_width": "4"}}, 2,
     "trtllm-build --checkpoint_dir checkpoints/gpt2-medium/float16-tp1 --output_dir engines/gpt2-medium/float16-tp1"
     " --gpt_attention_plugin float16 --gemm_plugin float16 --remove_input_padding enable --kv_cache_type paged"
     " --max_batch_size 16 --max_beam_width 4"),
    ("gpt2-medium", "1.2.1", {}, 0,
     "hf download openai-community/gpt2-medium config.json generation_config.json merges.txt model.safetensors"
     " tokenizer.json tokenizer_config.json vocab.json --local-dir checkpoints/gpt2-medium/hf"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "version", "options", "number", "line"), BY_HAND)
def test_command_lines_written_out_by_hand(name, version, options, number, line):
    assert recipe(name, trtllm=version, **options).commands[number].words() == line.split(" ")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gpt2-med", {}, "Did you mean 'gpt2-medium'"),
        ("llama-7b", {"tp_size": 3}, "tp_size 3 does not divide the attention heads of llama-7b, 32"),
        ("smollm2", {"tp_size": 2}, "does not divide the attention heads of smollm2, 9"),
        ("llama-7b", {"dtype": "fp16"}, "one of auto, float16"),
        ("llama-7b", {"weight_only": "int2"}, "one of int8, int4"),
        ("llama-7b", {"extra": {"--max_batch": "3"}}, "Did you mean '--max_batch_size'"),
        ("llama-7b", {"extra": {"--max_batch_size": "many"}}, "needs a whole number"),
        ("llama-7b", {"extra": {"--gather_context_logits": "yes"}}, "takes no value"),
        ("llama-7b", {"trtllm": "1.3.0rc21"}, "notebook 12"), ("llama-7b", {"trtllm": "0.8.0"}, "older"),
        ("llama-7b", {"trtllm": "latest"}, "no version"),
        ("llama-7b", {"extra": {"--max_output_len": "5"}}, "use --max_seq_len"),
        ("llama-7b", {"extra": {"--paged_context": None}}, "has no flag --paged_context"),
    ],
)  # fmt: skip
def test_what_a_recipe_refuses(name, options, said):
    with pytest.raises(EngineError, match=said) as caught:
        recipe(name, **options)
    assert "\n" not in str(caught.value)


def test_notes_tell_what_no_command_can_do():
    assert "gated" in recipe("llama-7b").notes[0]
    assert any("requirements.txt" in note for note in recipe("gemma-2b").notes)
    assert recipe("gpt2-medium", extra={"--max_batch_size": "8"}).notes == recipe("smollm2").notes == []
    # The guide leaves it out, and the default is large: 8 requests would do with a 256th of the logits.
    assert "trtllm-build 1.2.1 takes its default, 2048" in recipe("gpt2-medium").notes[0]
    assert "takes its default, 1;" in recipe("gpt2-medium", trtllm="0.9.0").notes[0]
    assert any("inferred" in n for n in recipe("smollm2", trtllm="0.12.0", extra={"--kv_cache_type": "paged"}).notes)


@pytest.mark.parametrize(
    ("name", "flag", "length", "said"),
    [  # a public log of 0.2x: "max_seq_len 4096 is larger than max_position_embeddings 1024", a warning, and it builds
        ("gpt2-medium", "--max_seq_len", 1025, "table of 1024 positions, and 1025 tokens"),
        ("gpt2-medium", "--max_seq_len", 1024, None),
        ("gpt2-medium", "--max_input_len", 1025, "1025 tokens are asked for"),
        ("llama-7b", "--max_seq_len", 4097, "trained for 4096 positions"),
    ],
)
def test_lengths_beyond_the_positions_of_the_model_are_named(name, flag, length, said):
    found = [note for note in recipe(name, extra={flag: str(length)}).notes if "positions" in note]
    assert len(found) == (said is not None) and (said is None or said in found[0])


def test_every_flag_of_a_recipe_is_explained():
    rows = recipe("llama-7b-tp4", trtllm="0.16.0", weight_only="int8").explain()
    assert [(r["flag"], r["value"]) for r in rows][-2:] == [("--kv_cache_type", "paged"), ("--workers", "4")]
    assert all(len(r["explain"]) > 20 for r in rows) and len(rows) == 18


def test_the_commands():
    run = CliRunner().invoke
    out = run(app, ["engine", "recipe", "gemma-2b", "--trtllm", "0.9.0", "--explain"]).output
    assert "--max_output_len 100" in out and "# The weights of google/gemma-2b are gated" in out
    assert "longest answer" in out
    out = run(app, ["engine", "recipe", "llama-7b", "--tp-size", "2", "--max_batch_size", "3"]).output
    assert "--max_batch_size 3" in out.partition("trtllm-build")[2]
    result = run(app, ["engine", "recipe", "llama-7b", "--max_batch", "3"])
    assert isinstance(result.exception, EngineError) and "Did you mean '--max_batch_size'" in str(result.exception)
    _, *rows, best = run(app, ["engine", "versions", "--driver", "570.124.06"]).output.splitlines()
    assert len(rows) == 28 and rows[0].startswith("26.07")
    assert best.endswith("25.05: nvcr.io/nvidia/tritonserver:25.05-trtllm-python-py3.")
