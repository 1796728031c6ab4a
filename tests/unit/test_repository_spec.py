"""DeploymentSpec: good values, and one sentence for each bad one."""

from pathlib import Path

import pytest
from repository_helpers import message as config_of

from servinglab.repository import DeploymentSpec, RepositoryError

GOOD = {"tokenizer_dir": "/models/tokenizer", "engine_dir": "/models/engine"}


def test_defaults_need_two_folders_only():
    spec = DeploymentSpec(**GOOD)
    assert spec.tokenizer_dir == Path("/models/tokenizer")
    assert (spec.generation, spec.decoupled, spec.max_batch_size) == ("new", True, 8)


def test_prefix_goes_before_every_name():
    spec = DeploymentSpec(**GOOD).replace(prefix="gemma-gly-")
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
    ({"generation": "0.18"}, "'new', 'old' or '1.1'"),
    ({"max_batch_size": 0}, "max_batch_size: Input should be greater than or equal to 1, not 0"),
    ({"max_batch_size": True}, "max_batch_size"),
    ({"max_batch_size": "8"}, "max_batch_size"),
    ({"max_batch_size": 2**31}, "max_batch_size"),
    ({"bls_instance_count": 1.5}, "bls_instance_count"),
    ({"max_queue_size": -1}, "max_queue_size"),
    ({"max_tokens_in_paged_kv_cache": 0}, "max_tokens_in_paged_kv_cache"),
    ({"decoupled": "yes"}, "valid boolean"),
    ({"accumulate_tokens": True, "decoupled": False}, "decoupled=True"),
    ({"logits_datatype": "float32"}, "TYPE_FP32"),
    ({"logits_datatype": []}, "TYPE_FP32"),
    ({"batch_scheduler_policy": "fifo"}, "guaranteed_no_evict"),
    ({"engine_dir": None}, "engine_dir: Input"),
    ({"max_batchsize": 4}, "max_batchsize: Extra inputs are not permitted, not 4. Did you mean 'max_batch_size'?"),
    ({"parameters": {"kv_cache_free_gpu_mem_fractoin": 0.5}}, "Did you mean 'kv_cache_free_gpu_mem_fraction'"),
    ({"parameters": {"kv_cache_free_gpu_mem_fraction": 1}}, "between 0 and 1"),
    ({"parameters": {"enable_kv_cache_reuse": "perhaps"}}, "true or false"),
    ({"parameters": {"cancellation_check_period_ms": -1}}, "whole number of at least 0"),
    ({"parameters": {"max_beam_width": 2}}, "no other parameter 'max_beam_width'"),
    ({"parameters": {"medusa_choices": [1]}}, "medusa_choices"),
    ({"parameters": None}, "parameters"),
]


@pytest.mark.parametrize(("fields", "words"), BAD, ids=[str(fields) for fields, _ in BAD])
def test_bad_values_give_one_sentence(fields, words):
    with pytest.raises(RepositoryError) as caught:
        DeploymentSpec(**(GOOD | fields))
    message = str(caught.value)
    assert words in message and "\n" not in message and message[-1] in ".?"
    with pytest.raises(RepositoryError):
        DeploymentSpec(**GOOD).replace(**fields)


def test_a_missing_folder_is_named():
    with pytest.raises(RepositoryError, match="engine_dir: Field required"):
        DeploymentSpec(tokenizer_dir="/t")


@pytest.mark.parametrize("skip", [True, False])
def test_the_bls_model_gets_a_tokenizer_when_it_decodes(skip):
    spec = DeploymentSpec(**GOOD, bls_decodes=True, skip_special_tokens=skip)
    parameters = config_of(spec, "tensorrt_llm_bls").parameters
    assert parameters["tokenizer_dir"].string_value == str(GOOD["tokenizer_dir"])
    assert parameters["skip_special_tokens"].string_value == str(skip).lower()
    assert "tokenizer_dir" not in config_of(DeploymentSpec(**GOOD), "tensorrt_llm_bls").parameters


def test_parameters_reach_the_config_as_text():
    more = {"kv_cache_free_gpu_mem_fraction": 0.5, "enable_kv_cache_reuse": False, "gpu_device_ids": "0,1"}
    spec = DeploymentSpec(**GOOD, max_tokens_in_paged_kv_cache=256, parameters=more)
    found = {key: value.string_value for key, value in config_of(spec, "tensorrt_llm").parameters.items()}
    assert found["kv_cache_free_gpu_mem_fraction"] == "0.5" and found["enable_kv_cache_reuse"] == "false"
    assert found["gpu_device_ids"] == "0,1" and found["max_tokens_in_paged_kv_cache"] == "256"
    assert found["gpt_model_path"] == "/models/engine" and found["gpt_model_type"] == "inflight_fused_batching"


def test_values_hold_what_the_model_reads():
    spec = DeploymentSpec(**GOOD, add_special_tokens=False)
    assert spec.values("preprocessing")["add_special_tokens"] is False
    assert spec.values("postprocessing").keys() == {
        "tokenizer_dir", "skip_special_tokens", "triton_max_batch_size", "postprocessing_instance_count",
    }  # fmt: skip
    assert "max_tokens_in_paged_kv_cache" not in spec.values("tensorrt_llm")
    assert spec.values("tensorrt_llm")["triton_backend"] == "tensorrtllm"
