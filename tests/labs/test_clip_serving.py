"""The five models on a real Triton, with encoders whose results are known; wrong inputs; the server outlives them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clip_standin
import numpy as np
import pytest
from PIL import Image
from test_prepare import encode, many_scans, png_header

from cliplab.client import ClipClient, RowError
from cliplab.deployment import MODELS, write_repository
from cliplab.measure import Watch, at_once
from cliplab.prepare import open_picture, to_array
from servinglab.old_client import ClientError
from servinglab.server import TritonServer

pytestmark = pytest.mark.integration
LABELS = ["red apple", "green leaf", "blue sea"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("clip")
    repository = write_repository(root / "models", clip_standin.write(root / "encoders"), LABELS, top=2)
    with TritonServer(repository, timeout=60) as running:
        yield running


@pytest.fixture(scope="module")
def clip(server):
    with ClipClient(server.grpc_url, deadline=10) as client:
        yield client


def picture(colour=(200, 30, 40), size=(40, 30), kind="PNG", **options):
    return encode(Image.new("RGB", size, colour), kind, **options)


def of_picture(data):
    return clip_standin.unit(to_array(open_picture(data)).mean(axis=(1, 2)) @ clip_standin.COLOURS)


def of_text(text):
    words = ["[CLS]", *text.split()[: clip_standin.LONGEST - 2], "[SEP]"]
    ids = [clip_standin.VOCABULARY.index(w) if w in clip_standin.VOCABULARY else 1 for w in words]
    return clip_standin.unit(clip_standin.WORDS[ids].sum(axis=0))


def test_picture_text_and_both(clip):
    data, text = picture(), "green leaf"
    image, words, both = clip.embed(data), clip.embed(text=text), clip.embed(data, text)
    np.testing.assert_allclose(image.vector, of_picture(data), atol=1e-5)
    np.testing.assert_allclose(words.vector, of_text(text), atol=1e-5)
    np.testing.assert_allclose(both.vector, clip_standin.unit(of_picture(data) + of_text(text)), atol=1e-5)
    assert words.labels[0] == "green leaf" and words.scores[0] == pytest.approx(1, abs=1e-5)
    expected = np.stack([of_text(label) for label in LABELS]) @ of_picture(data)
    order = np.argsort(-expected)[:2]
    assert list(image.labels) == [LABELS[n] for n in order]
    np.testing.assert_allclose(image.scores, expected[order], atol=1e-5)


def test_the_client_knows_which_weights_the_server_has(server, clip):
    assert clip.encoder and clip.encoder in (server.repository / "fusion" / "config.pbtxt").read_text()


def test_rows_of_one_request_may_differ(clip):
    data, text = picture(), "blue sea"
    rows = {"image": [data, b"", data], "text": [b"", text.encode(), text.encode()]}
    inputs = {name: np.array(values, dtype=object).reshape(-1, 1) for name, values in rows.items()}
    found = clip.triton.infer_inputs("clip", inputs).outputs["embedding"]
    expected = [of_picture(data), of_text(text), clip_standin.unit(of_picture(data) + of_text(text))]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_many_at_once_keep_their_order(clip):
    files = [picture((n, 255 - n, 7 * n % 256)) for n in range(37)]
    np.testing.assert_allclose(clip.embed_images(files), np.stack([of_picture(f) for f in files]), atol=1e-5)
    texts = ["red", "green apple", "blue sea leaf"] * 7
    np.testing.assert_allclose(clip.embed_texts(texts), np.stack([of_text(t) for t in texts]), atol=1e-5)
    assert clip.embed_images([]).shape == (0, 384)


def test_concurrent_requests_get_their_own_answers(clip):
    def ask(n):
        data = picture((n * 5 % 256, n * 11 % 256, 90))
        return np.abs(clip.embed(data, "red").vector - clip_standin.unit(of_picture(data) + of_text("red"))).max()

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(ask, range(48))) < 1e-5


def turned():
    """A picture stored on its side with the tag that says so, and the same upright."""
    upright = Image.fromarray(np.random.default_rng(3).integers(0, 255, (20, 60, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to view
    return encode(upright.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif), encode(upright)


def equal_pairs():
    grey = np.full((30, 30), 200 * 257, np.uint16)
    colour = Image.new("RGB", (40, 30), (200, 30, 40))
    layer = Image.new("RGBA", (40, 30), (200, 30, 40, 255))
    layer.paste((9, 9, 9, 0), (0, 0, 40, 10))
    white = colour.copy()
    white.paste((255, 255, 255), (0, 0, 40, 10))
    frames = [Image.new("RGB", (40, 30), shade) for shade in ("black", "blue")]
    return {
        "CMYK": (encode(colour.convert("CMYK"), "JPEG", quality=100), encode(colour)),
        "16 bits": (encode(Image.fromarray(grey)), encode(Image.new("RGB", (30, 30), (200, 200, 200)))),
        "alpha": (encode(layer), encode(white)),
        "turned by EXIF": turned(),
        "animation": (encode(colour, "GIF", save_all=True, append_images=frames), encode(colour)),
    }


@pytest.mark.parametrize("given, plain", equal_pairs().values(), ids=equal_pairs())
def test_unusual_pictures_count_as_what_they_show(clip, given, plain):
    assert clip.embed(given).vector @ clip.embed(plain).vector > 0.9999


noise = encode(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)), "JPEG")
REFUSED = {
    "corrupt JPEG": ((noise[:2] + b"\0" * 400, None), "no picture|broken or cut off"),
    "truncated": ((noise[: len(noise) // 2], None), "broken or cut off"),
    "0 x 0": ((png_header(0, 0), None), "no p"),
    "bomb": ((png_header(20_000, 20_000), None), "at most 50,000,000"),
    "nothing": ((None, None), "Neither a picture nor a text"),
    "blank text": ((None, " \n "), "Neither a picture nor a text"),
    "too much text": ((None, "a " * 600_000), "at most 1,048,576 are read"),
    "path instead of bytes": (("cat.png", None), r"path\.read_bytes\(\)\), not str"),
    "Path": ((Path("cat.png"), None), "not .*Path"),
    "half a character": ((None, "\ud800"), "half a character"),
}


@pytest.mark.parametrize("inputs, sentence", REFUSED.values(), ids=REFUSED)
def test_refused_with_one_sentence_and_the_server_lives_on(clip, inputs, sentence):
    with pytest.raises(ClientError, match=sentence) as refused:
        clip.embed(*inputs)
    sentence = str(refused.value)
    assert "Traceback" not in sentence and "\n" not in sentence and "ensemble" not in sentence
    assert clip.embed(text="red apple").labels[0] == "red apple"


def test_hostile_pictures_get_a_sentence_and_do_not_keep_others_waiting(clip):
    """Decoded, each of these small files would hold the preprocessing for longer than the client waits."""
    hostile = many_scans(50_000)

    def attack(_):
        with pytest.raises(ClientError, match="50,000 scans over 1,000 x 1,000 pixels; at most 100 are read"):
            clip.embed(hostile)

    with ThreadPoolExecutor(4) as pool:
        attacks = [pool.submit(attack, n) for n in range(40)]
        while not all(attack.done() for attack in attacks):
            np.testing.assert_allclose(clip.embed(picture()).vector, of_picture(picture()), atol=1e-5)
        for each in attacks:
            each.result()


def test_one_bad_row_is_named(clip):
    with pytest.raises(ClientError, match="Row 2 of 3: These 3 bytes are no picture"):
        clip.embed_images([picture(), b"???", picture()])
    with pytest.raises(RowError, match="Row 17 of 17: Neither a picture nor a text") as refused:  # a second request
        clip.embed_texts(["red"] * 16 + [" "])
    assert refused.value.row == 16


def test_bad_requests_leave_the_good_ones_of_their_batch_alone(clip):
    """Also what made Triton 24.10 silent for ever: a step that fails beside a parallel one. Many, at the same time."""

    def ask(n):
        if n % 3:
            return np.abs(clip.embed(text="green leaf").vector - of_text("green leaf")).max() < 1e-5
        bad = (b"\xff", b"red") if n % 2 else (b"", b"\xff")
        inputs = {name: np.array([[value]], dtype=object) for name, value in zip(("image", "text"), bad, strict=True)}
        with pytest.raises(ClientError, match="no picture" if n % 2 else "not valid UTF-8"):
            clip.triton.infer_inputs("clip", inputs)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(48)))


def test_long_text_is_cut_and_says_so(clip):
    found = clip.embed(text="red " * 10_000)
    assert found.tokens_left_out == 10_000 - (clip_standin.LONGEST - 2)
    np.testing.assert_allclose(found.vector, of_text("red " * 14), atol=1e-5)
    assert clip.embed(text="red").tokens_left_out == 0


@pytest.mark.parametrize("shape", [(3, 224, 224), (1, 3, 336, 336), (1, 224, 224, 3)])
def test_wrong_shape_is_answered_with_the_right_one(clip, shape):
    with pytest.raises(ClientError, match=r"declares 'pixel_values' as FP32 \[-1, 3, 224, 224\], the first dimension"):
        clip.triton.infer_inputs("vision_encoder", {"pixel_values": np.zeros(shape, np.float32)})
    found = clip.triton.infer_inputs("vision_encoder", {"pixel_values": np.ones((2, 3, 224, 224), np.float32)})
    assert found.outputs["image_embedding"].shape == (2, 384)


def test_a_batch_that_is_too_large_is_refused(clip):
    with pytest.raises(ClientError, match="batch-size must be <= 16"):
        clip.triton.infer_inputs("clip", {name: np.full((17, 1), b"", object) for name in ("image", "text")})


def test_both_inputs_must_be_sent(clip):
    """Optional inputs would be worse: a step with none left fails, and with no input at all there is no answer."""
    with pytest.raises(ClientError, match="needs the input 'text'"):
        clip.triton.infer_inputs("clip", {"image": np.array([[b""]], dtype=object)})
    with pytest.raises(ClientError, match="text"):
        clip.triton.infer_inputs("clip", {"image": np.array([[b""]], dtype=object)}, checked=False)


def test_statistics_count_what_was_asked(server, clip):
    watch = Watch(server.http_url)
    speed = at_once(lambda n: clip.embed(picture(), "red"), range(12), 4)
    done = watch.served()
    assert {model: (did.requests, did.rows) for model, did in done.items()} == dict.fromkeys(MODELS, (12, 12))
    assert all(0 <= did.queue_ms <= did.total_ms for did in done.values()) and speed > 0
    assert done["clip"].total_ms > done["image_preprocessing"].total_ms + done["fusion"].total_ms
    assert 1 <= done["vision_encoder"].mean_batch == 12 / done["vision_encoder"].executions
    assert Watch(server.http_url).served()["clip"].requests == 0


def fusion_inputs(image, text, states=(b"given", b"given")):
    given = {"image_embedding": image, "text_embedding": text}
    given = {name: np.asarray(vector, np.float32)[None] for name, vector in given.items()}
    return given | {f"{kind}_state": np.array([[s]], object) for kind, s in zip(("image", "text"), states, strict=True)}


def test_a_longer_vector_has_no_greater_say(clip):
    image, text = clip_standin.COLOURS[0], clip_standin.COLOURS[1]
    found = clip.triton.infer_inputs("fusion", fusion_inputs(9 * image, 0.1 * text)).outputs["embedding"][0]
    np.testing.assert_allclose(found, clip_standin.unit(clip_standin.unit(image) + clip_standin.unit(text)), atol=1e-5)


@pytest.mark.parametrize("vector", [np.full(384, np.nan), np.zeros(384)])
def test_an_encoder_that_failed_is_named(clip, vector):
    """On a GPU an engine may give anything for a picture that was none; the state decides, not the numbers."""
    with pytest.raises(ClientError, match="The encoder made no vector of the image"):
        clip.triton.infer_inputs("fusion", fusion_inputs(vector, clip_standin.COLOURS[0]))
    states = (b"none", b"given")
    found = clip.triton.infer_inputs("fusion", fusion_inputs(vector, clip_standin.COLOURS[0], states))
    np.testing.assert_allclose(found.outputs["embedding"][0], clip_standin.unit(clip_standin.COLOURS[0]), atol=1e-5)


def test_opposites_have_no_middle(clip):
    with pytest.raises(ClientError, match="opposite directions"):
        clip.triton.infer_inputs("fusion", fusion_inputs(clip_standin.COLOURS[0], -clip_standin.COLOURS[0]))


def test_steps_that_disagree_are_named(server, clip):
    """The batch written into dims on both sides loads, and then no request can pass."""
    files = {model: server.repository / model / "config.pbtxt" for model in ("image_preprocessing", "vision_encoder")}
    right = {model: file.read_text() for model, file in files.items()}
    try:
        for model, file in files.items():
            file.write_text(right[model].replace("[3, 224, 224]", "[-1, 3, 224, 224]"))
            server.load(model)
        server.load("clip")
        with pytest.raises(ClientError, match="'vision_encoder' is a step of 'clip': their configurations disagree"):
            clip.embed(picture())
    finally:
        for model, file in files.items():
            file.write_text(right[model])
            server.load(model)
        server.load("clip")
    assert clip.embed(picture()).vector.shape == (384,)
