"""A picture and a question through all models, on a real Triton: the text is transformers' with the same embeddings."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import torch
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException
from vlm_standin import TOKENS, Tower, picture, table, url

from cliplab.prepare import open_picture, to_array
from cliplab.vlm_deployment import export_vision, write_vlm_repository
from servinglab import chat
from servinglab.client import gather, inputs, stream
from servinglab.openai_frontend import OpenAIFrontend
from servinglab.server import TritonServer

pytestmark = pytest.mark.integration
BLS, GRAPH = "tensorrt_llm_bls", "llava_ensemble"
NEW = 10
QUESTION = "<image>\nWhat is it? It is"
BROKEN = {
    "Picture 1 of 1 of text 1: These 3 bytes are no picture": url(b"???"),
    "Picture 1 of 1 of text 1: The PNG picture is broken or cut off": url(picture(0)[:-300]),
    "its base64 is damaged": "data:image/png;base64,abc",
    "'http://127.0.0.1/secret.png' is not fetched": "http://127.0.0.1/secret.png",
    "'file:///etc/passwd' is not fetched": "file:///etc/passwd",
}


@pytest.fixture(scope="module")
def tower(hf_model):
    return Tower(hf_model.get_input_embeddings().weight.detach())


@pytest.fixture(scope="module")
def server(tmp_path_factory, tower, smollm2_engine_fp32, smollm2_tokenizer_dir):
    root = tmp_path_factory.mktemp("vlm")
    where = {"engine_dir": smollm2_engine_fp32, "tokenizer_dir": smollm2_tokenizer_dir, "tokens": TOKENS}
    repository = write_vlm_repository(root / "models", export_vision(tower, root / "vision.onnx"), **where)
    with TritonServer(repository, timeout=90) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with InferenceServerClient(server.grpc_url) as made:
        yield made


@pytest.fixture(scope="module")
def expected(hf_model, hf_tokenizer, tower):
    known = {}

    def answer(question, *pictures):
        """Greedy, of transformers, fed with embeddings; those to QUESTION in one batch, for they are as long."""
        if (question, *pictures) not in known:
            groups = [(picture(seed),) for seed in range(8)] if question == QUESTION else [pictures]
            whole = torch.stack([embedded(question, group) for group in groups])
            with torch.inference_mode():
                out = hf_model.generate(
                    inputs_embeds=whole, attention_mask=torch.ones(whole.shape[:2]), do_sample=False,
                    max_new_tokens=NEW, pad_token_id=hf_tokenizer.pad_token_id,
                )  # fmt: skip
            for group, ids in zip(groups, out, strict=True):
                known[(question, *group)] = hf_tokenizer.decode(ids, skip_special_tokens=True)
        return known[(question, *pictures)]

    def embedded(question, pictures):
        embed, rows = hf_model.get_input_embeddings(), []
        for number, part in enumerate(question.split("<image>")):
            rows += [table(tower, pictures[number - 1])] if number else []
            ids = hf_tokenizer(part, add_special_tokens=False).input_ids
            rows += [embed(torch.tensor(ids))] if ids else []
        return torch.cat(rows)

    return answer


def asked(*urls, text=QUESTION, count=NEW, **more):
    given = {"image_url_input": np.array([[each.encode() for each in urls]], object)} if urls else {}
    return inputs(text_input=text, max_tokens=count, stream=True, **given, **more)


def texts(results):
    return [result.as_numpy("text_output").flat[0].decode() for result in results]


@pytest.mark.parametrize("model", [BLS, GRAPH])
def test_streamed_text_is_that_of_transformers(client, expected, model):
    pieces = texts(stream(client, model, asked(url(picture(1)))))
    assert "".join(pieces) == expected(QUESTION, picture(1)) and len(pieces) > NEW // 2


def test_two_pictures_and_none(client, expected):
    two = "First <image> then <image>. The"
    found = "".join(texts(stream(client, BLS, asked(url(picture(1)), url(picture(2)), text=two))))
    assert found == expected(two, picture(1), picture(2)) != expected(two, picture(2), picture(1))
    assert "".join(texts(stream(client, BLS, asked(text="Once upon")))) == expected("Once upon")


def test_pixels_of_the_client_and_an_id_of_its_own(client, expected, tower):
    """`image_input`, which the client has prepared, and so it has to name the picture, too."""
    pixels = to_array(open_picture(picture(3))).astype(np.float16)[None, None]
    given = {"image_input": pixels, "prompt_table_extra_id": 5}
    assert "".join(texts(stream(client, BLS, asked(**given)))) == expected(QUESTION, picture(3))
    with pytest.raises(InferenceServerException, match="prompt_table_extra_ids must give each fake id"):
        list(stream(client, BLS, asked(image_input=pixels)))


def test_one_client_id_for_two_pictures_is_the_trap(client, expected):
    """The picture lies whole in the first block (64 tokens). The models' own ids are made of the pixels."""
    long = "<image>\nWhat do you see in this picture? Name the one thing that it shows, in a short sentence: it is"

    def ask(seed, **more):
        return "".join(texts(stream(client, BLS, asked(url(picture(seed)), text=long, **more))))

    right = [expected(long, picture(seed)) for seed in (4, 5)]
    assert right[0] != right[1]
    assert ask(4, prompt_table_extra_id=9) == right[0]
    assert ask(5, prompt_table_extra_id=9) == right[0], "the answer to picture 4, from the blocks that were kept of it"
    assert [ask(4), ask(5), ask(4)] == [*right, right[0]]


def test_eight_at_once_with_a_broken_one_and_one_that_is_cancelled(server, client, expected):
    """Each has its own answer, in order, whatever happens to the others."""
    alone = [expected(QUESTION, picture(seed)) for seed in range(8)]

    def ask(seed):
        with InferenceServerClient(server.grpc_url) as own:
            if seed == 8:
                with pytest.raises(InferenceServerException, match="no picture"):
                    list(stream(own, BLS, asked(url(b"???"))))
                return "refused"
            if seed == 9:
                next(stream(own, BLS, asked(url(picture(9)), count=400, min_tokens=400)))
                return "left"
            return "".join(texts(stream(own, BLS, asked(url(picture(seed))))))

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(ask, range(10))) == [*alone, "refused", "left"]
    together = gather(client, BLS, {seed: asked(url(picture(seed))) for seed in range(8)})
    assert ["".join(texts(results)) for results in together.values()] == alone


def test_a_batch_of_rows_and_one_broken_picture_in_it(client, expected):
    rows = [url(picture(seed)).encode() for seed in (1, 2)]

    def ask(urls):
        given = {"image_url_input": np.array([[each] for each in urls], object)}
        found = {}
        for result in stream(client, BLS, inputs(text_input=[QUESTION] * 2, max_tokens=NEW, stream=True, **given)):
            row = int(result.as_numpy("batch_index")[0, 0])
            found[row] = found.get(row, "") + texts([result])[0]
        return found

    assert ask(rows) == {0: expected(QUESTION, picture(1)), 1: expected(QUESTION, picture(2))}
    with pytest.raises(InferenceServerException, match="Picture 1 of 1 of text 2: These 3 bytes are no picture"):
        ask([rows[0], url(b"???").encode()])


@pytest.mark.parametrize("model", [BLS, GRAPH])
@pytest.mark.parametrize("said", BROKEN)
def test_a_bad_picture_is_one_sentence(client, model, said):
    with pytest.raises(InferenceServerException) as caught:
        list(stream(client, model, asked(BROKEN[said]), timeout=20))
    assert said in caught.value.message()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (asked(url(picture(0)), text="<image> and <image>"), "<image> 2 times, and the number of pictures is 1"),
        (asked(url(picture(0)), text="What is it?"), "<image> 0 times, and the number of pictures is 1"),
        (asked(text="What is <image>?"), "prompt_embedding_table, which has not been given"),
        (asked(*[url(picture(0))] * 5, text="<image>" * 5), "The number of pictures is 5; this model takes"),
        (asked(image_input=np.zeros((1, 1, 3, 8, 8), np.float16), text="<image>"), "takes pixel_values"),
        (asked(image_input=np.full((1, 1, 3, 224, 224), np.nan, np.float16), text="<image>"), "finite"),
        (asked(prompt_embedding_table=np.full((1, 49, 576), np.nan, np.float16), prompt_table_extra_id=1), "finite"),
        (asked(image_bytes_input=np.zeros((1, 1, 0, 8, 3), np.uint8)), "give pixels as [texts, pictures, height"),
        (asked(image_bytes_input=np.zeros((1, 1, 8, 8, 1), np.uint8)), "give pixels as [texts, pictures, height"),
        (asked(text="", prompt_table_extra_id=4), "prompt"),
        (asked(video_bytes_input=np.zeros((1, 1, 2, 2, 3), np.uint8)), "video_bytes_input was given"),
    ],
)
def test_what_does_not_fit_together_is_one_sentence(client, given, said):
    with pytest.raises(InferenceServerException) as caught:
        list(stream(client, BLS, given, timeout=20))
    assert said in caught.value.message()


def test_the_ensemble_says_that_it_has_no_picture(client):
    with pytest.raises(InferenceServerException, match="has no picture; give image_url_input"):
        list(stream(client, GRAPH, asked(text="What is it?"), timeout=20))


def test_pictures_over_openai_s_protocol(server, expected, smollm2_tokenizer_dir):
    def body(*urls, stream=False):
        parts = [{"type": "image_url", "image_url": {"url": each}} for each in urls]
        message = {"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}
        return {"messages": [message], "max_tokens": NEW, "stream": stream}

    with OpenAIFrontend(server.grpc_url, smollm2_tokenizer_dir) as front:
        with httpx.Client(base_url=front.url, timeout=60, trust_env=False) as web:
            good = url(picture(6)), url(picture(7))
            answer = web.post("/v1/chat/completions", json=body(*good)).json()
            prompt = chat.render(smollm2_tokenizer_dir, "<image><image>What is it?")
            assert answer["choices"][0]["message"]["content"] == expected(prompt, picture(6), picture(7))
            assert answer["usage"]["prompt_tokens"] > 2 * TOKENS
            streamed = web.post("/v1/chat/completions", json=body(good[0], stream=True))
            assert streamed.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n")
            wrong = {**BROKEN, "at most 16777216 characters": "data:image/png;base64," + "A" * 2**24}
            for said, bad in wrong.items():
                answer = web.post("/v1/chat/completions", json=body(bad))
                assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text[:300]


def test_the_server_has_lived_through_all_of_it(server, client, expected):
    time.sleep(0.5)
    assert client.is_server_ready()
    assert "".join(texts(stream(client, BLS, asked(url(picture(1)))))) == expected(QUESTION, picture(1))
