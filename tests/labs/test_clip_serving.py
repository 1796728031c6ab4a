"""The five models on a real Triton, with encoders whose results are known; wrong inputs; the server outlives them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import clip_standin
import numpy as np
import pytest
from PIL import Image
from test_prepare import encode, many_scans, png_header
from tritonclient.utils import InferenceServerException

from cliplab.client import ClipClient, ask
from cliplab.deployment import write_repository
from cliplab.encoders import OnnxEncoders, prepare
from cliplab.pictures import catalogue
from cliplab.prepare import open_picture, to_array
from servinglab.client import inputs
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
    with ClipClient(server.grpc_url) as client:
        yield client


def infer(clip, model, **tensors):
    return clip.client.infer(model, inputs(**tensors), client_timeout=10)


def nearest(clip, text):
    return ask(clip.client, [b""], [text]).as_numpy("labels")[0, 0].decode()


def picture(colour=(200, 30, 40), size=(40, 30), kind="PNG", **options):
    return encode(Image.new("RGB", size, colour), kind, **options)


def of_picture(data):
    return clip_standin.unit(to_array(open_picture(data)).mean(axis=(1, 2)) @ clip_standin.COLOURS)


def of_text(text):
    texts = [text, f"{text} leaf : sea"] if "leaf" in text else [text]  # the stand-in's dictionary explains a leaf
    vectors = []
    for words in (["[CLS]", *each.split()[: clip_standin.LONGEST - 2], "[SEP]"] for each in texts):
        ids = [clip_standin.VOCABULARY.index(w) if w in clip_standin.VOCABULARY else 1 for w in words]
        vectors.append(clip_standin.unit(clip_standin.WORDS[ids].sum(axis=0)))
    return clip_standin.unit(sum(vectors))


def test_picture_text_and_both(clip):
    data, text = picture(), "green leaf"
    np.testing.assert_allclose(clip.embed(data), of_picture(data), atol=1e-5)
    np.testing.assert_allclose(clip.embed(text=text), of_text(text), atol=1e-5)
    np.testing.assert_allclose(clip.embed(data, text), clip_standin.unit(of_picture(data) + of_text(text)), atol=1e-5)
    found = ask(clip.client, [b"", data], [text, ""])
    labels, scores = found.as_numpy("labels"), found.as_numpy("scores")
    assert labels[0, 0] == b"green leaf" and scores[0, 0] == pytest.approx(1, abs=1e-5)
    expected = np.stack([of_text(label) for label in LABELS]) @ of_picture(data)
    order = np.argsort(-expected)[:2]
    assert [label.decode() for label in labels[1]] == [LABELS[n] for n in order]
    np.testing.assert_allclose(scores[1], expected[order], atol=1e-5)


def test_the_client_knows_which_weights_the_server_has(server, clip):
    assert clip.encoder and clip.encoder in (server.repository / "fusion" / "config.pbtxt").read_text()


def test_rows_of_one_request_may_differ(clip):
    data, text = picture(), "blue sea"
    found = ask(clip.client, [data, b"", data], ["", text, text]).as_numpy("embedding")
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
        return np.abs(clip.embed(data, "red") - clip_standin.unit(of_picture(data) + of_text("red"))).max()

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
    assert clip.embed(given) @ clip.embed(plain) > 0.9999


noise = encode(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)), "JPEG")
REFUSED = {
    "corrupt JPEG": ((noise[:2] + b"\0" * 400, None), "no picture|broken or cut off"),
    "truncated": ((noise[: len(noise) // 2], None), "broken or cut off"),
    "0 x 0": ((png_header(0, 0), None), "no p"),
    "bomb": ((png_header(20_000, 20_000), None), "at most 50,000,000"),
    "nothing": ((None, None), "Neither a picture nor a text"),
    "blank text": ((None, " \n "), "Neither a picture nor a text"),
    "too much text": ((None, "a " * 600_000), "at most 1,048,576 are read"),
}


@pytest.mark.parametrize("pair, sentence", REFUSED.values(), ids=REFUSED)
def test_refused_with_one_sentence_and_the_server_lives_on(clip, pair, sentence):
    with pytest.raises(InferenceServerException, match=sentence) as refused:
        clip.embed(*pair)
    sentence = refused.value.message()
    assert "Traceback" not in sentence and "\n" not in sentence
    assert nearest(clip, "red apple") == "red apple"


def test_hostile_pictures_get_a_sentence_and_do_not_keep_others_waiting(clip):
    """Decoded, each of these small files would hold the preprocessing for longer than the client waits."""
    hostile = many_scans(50_000)

    def attack(_):
        with pytest.raises(InferenceServerException, match="50,000 scans over 1,000 x 1,000 pixels; at most 100 are"):
            clip.embed(hostile)

    with ThreadPoolExecutor(4) as pool:
        attacks = [pool.submit(attack, n) for n in range(40)]
        while not all(attack.done() for attack in attacks):
            np.testing.assert_allclose(clip.embed(picture()), of_picture(picture()), atol=1e-5)
        for each in attacks:
            each.result()


def test_one_bad_row_is_named(clip):
    with pytest.raises(InferenceServerException, match="Row 2 of 3: These 3 bytes are no picture"):
        clip.embed_images([picture(), b"???", picture()])


def test_bad_requests_leave_the_good_ones_of_their_batch_alone(clip):
    """Also what made Triton 24.10 silent for ever: a step that fails beside a parallel one. Many, at the same time."""

    def ask(n):
        if n % 3:
            return np.abs(clip.embed(text="green leaf") - of_text("green leaf")).max() < 1e-5
        bad = (b"\xff", b"red") if n % 2 else (b"", b"\xff")
        tensors = {name: np.array([[value]], object) for name, value in zip(("image", "text"), bad, strict=True)}
        with pytest.raises(InferenceServerException, match="no picture" if n % 2 else "not valid UTF-8"):
            infer(clip, "clip", **tensors)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(48)))


def test_long_text_is_cut_and_says_so(clip):
    found = ask(clip.client, [b"", b""], ["red " * 10_000, "red"])
    assert found.as_numpy("tokens_left_out").ravel().tolist() == [10_000 - (clip_standin.LONGEST - 2), 0]
    np.testing.assert_allclose(found.as_numpy("embedding")[0], of_text("red " * 14), atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 224, 224), (1, 3, 336, 336), (1, 224, 224, 3)])
def test_wrong_shape_is_answered_with_the_right_one(clip, shape):
    with pytest.raises(InferenceServerException, match=r"Expected \[-1,3,224,224\]"):
        infer(clip, "vision_encoder", pixel_values=np.zeros(shape, np.float32))
    found = infer(clip, "vision_encoder", pixel_values=np.ones((2, 3, 224, 224), np.float32))
    assert found.as_numpy("image_embedding").shape == (2, 384)


def test_a_batch_that_is_too_large_is_refused(clip):
    with pytest.raises(InferenceServerException, match="batch-size must be <= 16"):
        ask(clip.client, [b""] * 17, ["red"] * 17)


def test_both_inputs_must_be_sent(clip):
    """Optional inputs would be worse: a step with none left fails, and with no input at all there is no answer."""
    with pytest.raises(InferenceServerException, match="text"):
        infer(clip, "clip", image=np.array([[b""]], dtype=object))


def fuse(clip, image, text, states=(b"given", b"given")):
    given = {"image_embedding": image, "text_embedding": text}
    given = {name: np.asarray(vector, np.float32)[None] for name, vector in given.items()}
    given |= {f"{kind}_state": np.array([[s]], object) for kind, s in zip(("image", "text"), states, strict=True)}
    return infer(clip, "fusion", **given).as_numpy("embedding")[0]


def test_a_longer_vector_has_no_greater_say(clip):
    image, text = clip_standin.COLOURS[0], clip_standin.COLOURS[1]
    expected = clip_standin.unit(clip_standin.unit(image) + clip_standin.unit(text))
    np.testing.assert_allclose(fuse(clip, 9 * image, 0.1 * text), expected, atol=1e-5)


@pytest.mark.parametrize("vector", [np.full(384, np.nan), np.zeros(384)])
def test_an_encoder_that_failed_is_named(clip, vector):
    """On a GPU an engine may give anything for a picture that was none; the state decides, not the numbers."""
    text = clip_standin.COLOURS[0]
    with pytest.raises(InferenceServerException, match="The encoder made no vector of the image"):
        fuse(clip, vector, text)
    np.testing.assert_allclose(fuse(clip, vector, text, (b"none", b"given")), clip_standin.unit(text), atol=1e-5)


def test_opposites_have_no_middle(clip):
    with pytest.raises(InferenceServerException, match="opposite directions"):
        fuse(clip, clip_standin.COLOURS[0], -clip_standin.COLOURS[0])


def test_steps_that_disagree_are_named(server, clip):
    """The batch written into dims on both sides loads, and then no request can pass."""
    files = {model: server.repository / model / "config.pbtxt" for model in ("image_preprocessing", "vision_encoder")}
    right = {model: file.read_text() for model, file in files.items()}
    try:
        for model, file in files.items():
            file.write_text(right[model].replace("[3, 224, 224]", "[-1, 3, 224, 224]"))
            server.load(model)
        server.load("clip")
        with pytest.raises(InferenceServerException, match="unexpected shape for input 'pixel_values'"):
            clip.embed(picture())
    finally:
        for model, file in files.items():
            file.write_text(right[model])
            server.load(model)
        server.load("clip")
    assert clip.embed(picture()).shape == (384,)


def test_the_int8_encoders_are_served_and_near(tmp_path):
    """Within the 0.1 that notebook 13 allows int8, and exactly what the same files say in this process."""
    pictures = catalogue("subset")[3::40]
    files, captions = [each.file.read_bytes() for each in pictures], [each.caption for each in pictures]
    with TritonServer(write_repository(tmp_path / "models", "int8", LABELS)) as running:
        with ClipClient(running.grpc_url) as client:
            seen, read = client.embed_images(files), client.embed_texts(captions)
    plain, small = OnnxEncoders(prepare()), OnnxEncoders(prepare("int8"))
    np.testing.assert_allclose(seen, small.encode_images(files), atol=1e-5)
    for vectors, expected in ((seen, plain.encode_images(files)), (read, plain.encode_texts(captions))):
        cosines = (vectors * expected).sum(axis=1)
        assert 0.95 < cosines.min() and cosines.max() < 0.99999
