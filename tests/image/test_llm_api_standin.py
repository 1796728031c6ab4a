"""The stand-in for TensorRT-LLM's LLM API and trtllm-serve: NVIDIA's names, the text of the embedded server; and the
cells of notebook 12 that drive them."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import itertools
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from tensorrt_llm import LLM, SamplingParams, llmapi
from tensorrt_llm.llmapi import KvCacheConfig

from engines import llm_api

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
for folder in ("tests/unit", "tests/notebooks"):
    sys.path.append(str(ROOT / folder))
from tiny_models import write_checkpoint  # noqa: E402

API = tomllib.loads((HERE / "tensorrt_llm/api.toml").read_text())
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
PROMPT = "Three fruits are"
SAMPLED = {"max_tokens": 10, "temperature": 0.8, "top_p": 0.9, "seed": 3}
CHAT = [{"role": "user", "content": "Name three fruits."}]


@pytest.fixture(scope="module")
def llm(smollm2_engine_fp32):
    with LLM(model=HUB, max_beam_width=3) as made:
        yield made


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """What a machine with NVIDIA's package has: it can be imported, and its command is on the PATH."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "trtllm-serve"
    command.write_text((HERE / "bin/trtllm-serve").read_text().replace("#!python", f"#!{sys.executable}"))
    command.chmod(0o755)
    lib = str(Path(importlib.util.find_spec("servinglab").origin).parents[1])
    path = filter(None, [str(HERE), lib, os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join(path), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def served(environment, smollm2_engine_fp32):
    """The address of a trtllm-serve."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["trtllm-serve", "serve", HUB, "--host", "127.0.0.1", "--port", str(port), "--max_batch_size", "4"]
    with subprocess.Popen(words, env={**os.environ, **environment}) as process:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + 120
        try:
            while not _healthy(url):
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
    assert process.returncode == 0


def _healthy(url):
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def asker(served):
    quiet = httpx.Client(trust_env=False, timeout=120)
    with openai.OpenAI(base_url=f"{served}/v1", api_key="-", max_retries=0, http_client=quiet) as client:
        yield client


def of_the_server(client, prompt=PROMPT, **inputs):
    return "".join(c.text for c in client.stream(prompt, exclude_input_in_output=True, **{"max_tokens": 10} | inputs))


# --- NVIDIA's names -------------------------------------------------------------------------------------------------


def released(name, key="names"):
    return {one: default for one, _, default in (word.partition("=") for word in API[name][key].split())}


@pytest.mark.parametrize("name", [name for name in API if "names" in API[name]])
def test_names_defaults_and_order_are_the_released_ones(name):
    thing = llmapi
    for part in name.split("."):
        thing = getattr(thing, part)
    known, found = released(name), {}
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
            empty = parameter.default is parameter.empty
            found[parameter.name] = "!" if empty else repr(parameter.default).replace("<factory>", "()")
    assert found
    for one, default in found.items():
        assert default == known[one].replace('"', "'"), one
    by_name = [p.kind is p.KEYWORD_ONLY for p in inspect.signature(thing).parameters.values()]
    if not any(by_name):  # else the place says nothing
        assert list(found) == list(known)[: len(found)]


def test_the_other_arguments_of_llm_and_the_flags_are_released_ones(environment):
    known = released("LLM", "kwargs")
    assert {one: known[one] for one in llmapi.LLM_ARGS} == dict.fromkeys(llmapi.LLM_ARGS, "None") | {
        "kv_cache_config": "()"
    }
    run = subprocess.run(["trtllm-serve", "--help"], env=os.environ | environment, capture_output=True, text=True)
    flags = set(re.findall(r"--\w+", run.stdout)) - {"--help"}
    assert "--host" in flags and flags <= set(API["trtllm-serve"]["flags"].split())


def test_sampling_params_are_those_that_the_course_teaches():
    taught = {each.name: each.default for each in llm_api.parameters("llm_api").values() if each.name}
    for parameter in inspect.signature(SamplingParams).parameters.values():
        if parameter.name not in ("add_special_tokens", "skip_special_tokens"):  # without a row there
            default = taught[parameter.name]
            assert parameter.default == default or parameter.default is None, parameter.name  # None: the runtime's own


def test_an_output_has_what_the_documentation_names(llm):
    output = llm.generate(PROMPT, SamplingParams(max_tokens=2))
    assert all(hasattr(output, name) for name in API["RequestOutput"]["attributes"].split())
    assert (output.prompt, output.finished) == (PROMPT, True)


@pytest.mark.parametrize(
    "call, error, said",
    [
        (lambda llm: SamplingParams(min_p=0.1), TypeError, "min_p"),
        (lambda llm: KvCacheConfig(host_cache_size=1), TypeError, "host_cache_size"),
        (lambda llm: LLM(HUB, cuda_graph_config=None), ValueError, "cuda_graph_config"),
        (lambda llm: LLM(HUB, tensor_parallel_size=2), ValueError, "tensor_parallel_size is 2"),
        (lambda llm: LLM(HUB, backend="tensorrt"), ValueError, "backend is 'tensorrt'"),
        (lambda llm: llm.generate(PROMPT, lora_request=1), TypeError, "lora_request"),
        (lambda llm: SamplingParams(n=2), ValueError, "best_of is 2"),
        (lambda llm: SamplingParams(exclude_input_from_output=False), ValueError, "exclude_input_from_output"),
        (lambda llm: llm.generate(PROMPT, SamplingParams(top_p=2.0)), RuntimeError, "top_p is 2"),
        (lambda llm: llm.generate(PROMPT, SamplingParams(use_beam_search=True, n=9)), RuntimeError, "beam_width 9"),
    ],
)
def test_what_it_cannot_do_is_refused_by_its_name(llm, call, error, said):
    with pytest.raises(error, match=said):
        call(llm)


def test_a_flag_that_it_has_not_is_refused(environment):
    words = ["trtllm-serve", HUB, "--ep_size", "2"]
    done = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 2 and "--ep_size" in done.stderr


# --- the same text everywhere ---------------------------------------------------------------------------------------


def test_greedy_text_is_that_of_transformers_and_of_the_server(llm, client, asker, hf_model, hf_tokenizer):
    ids = hf_tokenizer(PROMPT, return_tensors="pt").input_ids
    reference = hf_model.generate(ids, max_new_tokens=10, do_sample=False)[0, ids.shape[1] :].tolist()
    output = llm.generate(PROMPT, SamplingParams(max_tokens=10))
    (one,) = output.outputs
    assert output.prompt_token_ids == ids[0].tolist() and one.token_ids == reference
    assert one.text == hf_tokenizer.decode(reference) == of_the_server(client) and one.finish_reason == "length"
    asked = {"model": HUB, "prompt": PROMPT, "max_tokens": 10, "temperature": 0}
    whole = asker.completions.create(**asked)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (one.text, "length")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(output.prompt_token_ids), 10)
    pieces = [event.choices[0].text for event in asker.completions.create(**asked, stream=True)]
    assert "".join(pieces) == one.text and len(pieces) == 10


def test_chat_is_the_template_and_the_same_text(llm, asker, hf_tokenizer):
    prompt = hf_tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    text = llm.generate(prompt, SamplingParams(max_tokens=40)).outputs[0].text
    asked = {"model": HUB, "messages": CHAT, "max_completion_tokens": 40, "temperature": 0}
    assert asker.chat.completions.create(**asked).choices[0].message.content == text
    events = list(asker.chat.completions.create(**asked, stream=True))
    assert "".join(event.choices[0].delta.content for event in events) == text and len(events) > 5
    assert [model.id for model in asker.models.list()] == [HUB]


def test_a_seed_gives_the_server_s_text_and_copies_the_next_seeds(llm, client, asker):
    texts = [of_the_server(client, **SAMPLED | {"seed": seed}) for seed in (3, 4, 5)]
    assert len(set(texts)) == 3
    outputs = llm.generate(PROMPT, SamplingParams(**SAMPLED, n=3)).outputs
    assert [one.text for one in outputs] == texts and [one.index for one in outputs] == [0, 1, 2]
    choices = asker.completions.create(model=HUB, prompt=PROMPT, **SAMPLED, n=3).choices
    assert [choice.text for choice in choices] == texts


def test_best_of_are_the_likeliest(llm):
    params = {"max_tokens": 6, "temperature": 1.0, "seed": 1}
    every = llm.generate(PROMPT, SamplingParams(**params, n=4, logprobs=0)).outputs
    best = llm.generate(PROMPT, SamplingParams(**params, n=2, best_of=4)).outputs
    likely = sorted(every, key=lambda one: one.cumulative_logprob, reverse=True)[:2]
    assert [one.text for one in best] == [one.text for one in likely] and likely[0].cumulative_logprob < 0


def test_it_samples_where_the_course_says_so():
    for temperature, top_k, top_p in itertools.product((None, 0, 0.8), (None, 0, 1, 5), (None, 0.0, 0.5, 1.0)):
        said = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        given = SamplingParams(**said)._for_the_executor(0)
        sampled = given.get("temperature", 1) != 0 and bool(given.get("top_k") or given.get("top_p"))
        assert sampled == (llm_api.decides(said, "llm_api") == "sampling"), said


def test_a_bare_request_samples_on_openai_s_path_alone(llm, asker):
    asked = {"model": HUB, "prompt": PROMPT, "max_tokens": 10}
    texts = {asker.completions.create(**asked, seed=seed).choices[0].text for seed in range(3)}
    assert len(texts) == 3
    bare = [llm.generate(PROMPT, SamplingParams(max_tokens=10, seed=seed)).outputs[0].text for seed in range(3)]
    assert len(set(bare)) == 1


# --- what an answer may be asked for --------------------------------------------------------------------------------


def test_a_list_gets_a_list_and_ids_are_a_prompt(llm):
    params = [SamplingParams(max_tokens=3), SamplingParams(max_tokens=5)]
    first, second = llm.generate([PROMPT, "The sun"], params)
    assert [len(one.outputs[0].token_ids) for one in (first, second)] == [3, 5]
    same = llm.generate(first.prompt_token_ids, params[0])
    assert same.outputs[0].token_ids == first.outputs[0].token_ids and same.prompt is None


async def test_streams_come_token_by_token_and_several_at_once(llm):
    async def pieces(prompt):
        answer = llm.generate_async(prompt, SamplingParams(max_tokens=8), streaming=True)
        return [step.outputs[0].text_diff async for step in answer]

    prompts = [PROMPT, "The sun", "Once upon a time"]
    streams = await asyncio.gather(*map(pieces, prompts))
    texts = [(await llm.generate_async(prompt, SamplingParams(max_tokens=8))).outputs[0].text for prompt in prompts]
    assert list(map("".join, streams)) == texts and [len(stream) for stream in streams] == [8, 8, 8]


def test_stop_words_and_stop_tokens_end_an_answer(llm):
    plain = llm.generate(PROMPT, SamplingParams(max_tokens=20)).outputs[0]
    word = re.findall(r"\w+", plain.text)[2][1:]  # no token of its own
    before = plain.text.split(word)[0]
    for included in (False, True):
        params = SamplingParams(max_tokens=20, stop=word, include_stop_str_in_output=included)
        one = llm.generate(PROMPT, params).outputs[0]
        assert (one.text, one.finish_reason, one.stop_reason) == (before + word * included, "stop", word)
    token = plain.token_ids[4]
    one = llm.generate(PROMPT, SamplingParams(max_tokens=20, stop_token_ids=[token])).outputs[0]
    assert one.token_ids == plain.token_ids[: plain.token_ids.index(token)] and one.stop_reason == token


def test_the_end_token_ends_it_unless_ignored(llm, hf_tokenizer):
    prompt = hf_tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    ended = llm.generate(prompt, SamplingParams(max_tokens=None)).outputs[0]
    assert ended.finish_reason == "stop" and ended.stop_reason is None
    longer = len(ended.token_ids) + 5
    for more in ({"ignore_eos": True}, {"min_tokens": longer}):
        assert len(llm.generate(prompt, SamplingParams(max_tokens=longer, **more)).outputs[0].token_ids) == longer


def test_bad_words_and_penalties_count(llm):
    plain = llm.generate(PROMPT, SamplingParams(max_tokens=24)).outputs[0].text
    word = plain.split()[0]
    assert f" {word}" not in llm.generate(PROMPT, SamplingParams(max_tokens=24, bad=f" {word}")).outputs[0].text
    assert llm.generate(PROMPT, SamplingParams(max_tokens=24, repetition_penalty=5.0)).outputs[0].text != plain


def test_log_probs_are_those_of_the_model(llm, hf_model):
    import torch

    output = llm.generate(PROMPT, SamplingParams(**SAMPLED, logprobs=2))
    (one,) = output.outputs
    ids = torch.tensor([output.prompt_token_ids + one.token_ids])
    with torch.no_grad():
        logs = torch.log_softmax(hf_model(ids).logits[0, len(output.prompt_token_ids) - 1 : -1].double(), -1).numpy()
    assert len(one.logprobs) == len(one.token_ids)
    for row, token, found in zip(logs, one.token_ids, one.logprobs, strict=True):
        best = np.argsort(-row)[:2].tolist()
        assert list(found) == list(dict.fromkeys([*best, token]))
        assert [found[each].rank for each in best] == [1, 2] and found[token].rank == (row >= row[token]).sum()
        assert [found[each].logprob for each in found] == pytest.approx(row[list(found)], abs=1e-3)


def test_beams_are_the_likeliest_first(llm, hf_model, hf_tokenizer):
    prompt = "The old clock in the hall"  # its second of two beams is not the second of three
    params = SamplingParams(max_tokens=8, use_beam_search=True, best_of=3, n=2, length_penalty=0.0)
    outputs = llm.generate(prompt, params).outputs
    ids = hf_tokenizer(prompt, return_tensors="pt").input_ids
    beams = {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.0, "early_stopping": True}
    reference = hf_model.generate(ids, max_new_tokens=8, do_sample=False, **beams)
    assert [one.token_ids for one in outputs] == reference[:, ids.shape[1] :].tolist()
    assert {one.finish_reason for one in outputs} == {"length"}


def test_a_folder_is_a_model_too_and_its_cache_may_be_small(tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "cache"))
    model = write_checkpoint(tmp_path / "tiny")
    reference = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=8, do_sample=False)[0, 3:].tolist()
    cache = KvCacheConfig(max_tokens=64, enable_block_reuse=False)
    with LLM(tmp_path / "tiny", max_batch_size=2, max_seq_len=200, kv_cache_config=cache) as llm:
        one = llm.generate([5, 6, 7], SamplingParams(max_tokens=8)).outputs[0]
        assert one.token_ids == [token for token in reference if token != 2]
        with pytest.raises(RuntimeError, match="the cache has 1"):
            llm.generate([5, 6, 7], SamplingParams(max_tokens=100))
    with pytest.raises(RuntimeError, match="LLM is shutting down"):
        llm.generate([5, 6, 7])


@pytest.mark.parametrize(
    "body, said",
    [
        ({"prompt": PROMPT, "temprature": 1}, "temprature"),
        ({"prompt": PROMPT, "n": 2, "temperature": 0}, "best_of is 2"),
        ({"prompt": PROMPT, "n": 2, "stream": True}, "streams only one answer"),
        ({"prompt": PROMPT, "echo": True}, "no echo"),
        ({"prompt": PROMPT, "max_tokens": 0}, "max_tokens is 0"),
        ({}, "prompt"),
    ],
)
def test_a_request_that_cannot_be_served_gets_400_and_the_reason(served, body, said):
    answer = httpx.post(f"{served}/v1/completions", json={"model": HUB, **body}, trust_env=False)
    assert answer.status_code == 400 and said in answer.json()["message"]


# --- the notebook ---------------------------------------------------------------------------------------------------


# A minute; each day nbval runs the notebook, which finds the stand-in by itself.
@pytest.mark.long
@pytest.mark.timeout(600)
def test_notebook_12_drives_them_where_they_are_there(environment, monkeypatch, client):
    import execute_notebooks
    from notebook_files import read_source

    from course.manifest import load

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (entry,) = load().select(["12"])
    notebook, _ = execute_notebooks.execute(read_source(ROOT / "notebooks/text/12_llm_api.py"), entry)
    said = {c.source: "".join(out.get("text", "") for out in c.get("outputs", [])) for c in notebook.cells}
    assert "LLM API: runs on NVIDIA's tensorrt_llm\n" in said.values()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    alts = [image["alt"] for out in outputs if (image := out.get("metadata", {}).get("image/png"))]
    question = entry.parameters["question"]
    assert repr(of_the_server(client, question, max_tokens=32)) in alts[0]  # greedy, not in the chat template
    assert re.search(r"/v1/completions: \d+ bytes in 7 events", alts[1])  # six tokens, [DONE]
    assert "temprature: misspelt at /v1/completions: error 400" in alts[2]
    bare = re.search(r"(\d+) for \{\} on engine; (\d+) for \{\} on trtllm-serve", alts[3])
    assert int(bare[1]) == 1 < int(bare[2])  # nothing said about sampling
