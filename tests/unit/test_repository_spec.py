"""DeploymentSpec: good values, and one sentence for each bad one."""

from pathlib import Path

import pytest

from servinglab.repository import DeploymentSpec, RepositoryError, contract, make_spec
from servinglab.repository.pbtxt import model_config

GOOD = {"tokenizer_dir": "/models/tokenizer", "engine_dir": "/models/engine"}


def test_defaults_need_two_folders_only():
    spec = DeploymentSpec(**GOOD)
    assert spec.tokenizer_dir == Path("/models/tokenizer")
    assert spec.model_names == contract.MODELS
    assert (spec.lane, spec.generation, spec.decoupled, spec.max_batch_size) == ("embedded", "new", True, 8)


def test_prefix_goes_before_every_name():
    spec = DeploymentSpec(**GOOD, prefix="gemma-gly-")
    assert spec.model_names == tuple(f"gemma-gly-{name}" for name in contract.MODELS)
    bls = spec.values("tensorrt_llm_bls")
    assert {bls[f"{inner}_model_name"] for inner in ("tensorrt_llm", "preprocessing", "postprocessing")} == {
        "gemma-gly-tensorrt_llm", "gemma-gly-preprocessing", "gemma-gly-postprocessing",
    }  # fmt: skip


BAD = [
    ({"name": ""}, "name"),
    ({"name": "a/b"}, "name"),
    ({"name": ".."}, "name"),
    ({"prefix": "../"}, "prefix"),
    ({"prefix": "a b"}, "prefix"),
    ({"lane": "gpu"}, "embedded, trtllm"),
    ({"generation": "0.19"}, "old, new, 1.1"),
    ({"max_batch_size": 0}, "at least 1"),
    ({"max_batch_size": True}, "max_batch_size"),
    ({"max_batch_size": "8"}, "max_batch_size"),
    ({"max_batch_size": 2**31}, "max_batch_size"),
    ({"max_beam_width": -1}, "max_beam_width"),
    ({"bls_instance_count": 1.5}, "bls_instance_count"),
    ({"max_queue_size": -1}, "at least 0"),
    ({"max_tokens_in_paged_kv_cache": 0}, "max_tokens_in_paged_kv_cache"),
    ({"decoupled": "yes"}, "True or False"),
    ({"accumulate_tokens": True, "decoupled": False}, "decoupled=True"),
    ({"logits_datatype": "float32"}, "TYPE_FP32"),
    ({"logits_datatype": []}, "TYPE_FP32"),
    ({"batch_scheduler_policy": "fifo"}, "guaranteed_no_evict"),
    ({"prompt_embedding_table_data_type": "TYPE_BF16"}, "1.1"),
    ({"tokenizer_dir": ""}, "tokenizer_dir"),
    ({"engine_dir": None}, "engine_dir"),
    ({"parameters": {"kv_cache_free_gpu_mem_fractoin": 0.5}}, "Did you mean 'kv_cache_free_gpu_mem_fraction'"),
    ({"parameters": {"max_beam_width": 2}}, "field of DeploymentSpec"),
    ({"parameters": {"medusa_choices": [1]}}, "medusa_choices"),
    ({"parameters": None}, "parameters"),
]


@pytest.mark.parametrize(("fields", "words"), BAD, ids=[str(fields) for fields, _ in BAD])
def test_bad_values_give_one_sentence(fields, words):
    with pytest.raises(RepositoryError) as caught:
        DeploymentSpec(**(GOOD | fields))
    message = str(caught.value)
    assert words in message and "\n" not in message and message[-1] in ".?"


def test_make_spec_explains_fields():
    with pytest.raises(RepositoryError, match="no field 'max_batchsize'. Did you mean 'max_batch_size'?"):
        make_spec(**GOOD, max_batchsize=4)
    with pytest.raises(RepositoryError, match="needs engine_dir"):
        make_spec(tokenizer_dir="/t")
    assert make_spec(**GOOD, max_batch_size=4).max_batch_size == 4


@pytest.mark.parametrize("skip", [True, False])
def test_the_bls_model_gets_a_tokenizer_when_it_decodes(skip):
    spec = DeploymentSpec(**GOOD, bls_decodes=True, skip_special_tokens=skip)
    parameters = model_config(spec, "tensorrt_llm_bls").parameters
    assert parameters["tokenizer_dir"].string_value == str(GOOD["tokenizer_dir"])
    assert parameters["skip_special_tokens"].string_value == str(skip).lower()
    assert "tokenizer_dir" not in model_config(DeploymentSpec(**GOOD), "tensorrt_llm_bls").parameters


def test_values_hold_what_the_model_reads():
    spec = DeploymentSpec(**GOOD, add_special_tokens=False, parameters={"kv_cache_free_gpu_mem_fraction": 0.5})
    assert spec.values("preprocessing")["add_special_tokens"] == "false"
    assert spec.values("postprocessing").keys() == {
        "tokenizer_dir", "skip_special_tokens", "triton_max_batch_size", "postprocessing_instance_count",
    }  # fmt: skip
    llm = spec.values("tensorrt_llm")
    assert llm["engine_dir"] == "/models/engine" and llm["triton_backend"] == "python"
    assert llm["kv_cache_free_gpu_mem_fraction"] == "0.5"
    assert "max_tokens_in_paged_kv_cache" not in llm
    assert "kv_cache_free_gpu_mem_fraction" not in spec.values("ensemble")
