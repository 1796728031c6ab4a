"""The weights of data/vlm as they are served: the answers are those of the same weights in PyTorch."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image
from tritonclient.grpc import InferenceServerClient

from cliplab import vlm, vlm_files
from cliplab.describe import Describer
from cliplab.encoders import EncoderError, session
from cliplab.pictures import catalogue
from cliplab.prepare import open_picture, to_array
from cliplab.vlm_data import square
from cliplab.vlm_pictures import compose, shape
from servinglab.client import gather, inputs
from servinglab.server import TritonServer

pytestmark = pytest.mark.integration
ASKED = ["What is it?", "Is there a dog?"]


def scene():
    """A red star left of a blue square, as the file of a picture."""
    rng, out = np.random.default_rng(0), io.BytesIO()
    image = compose("row", [shape("star", "red", rng), shape("square", "blue", rng)], rng).image
    Image.fromarray(np.asarray(image)).save(out, "PNG")
    return out.getvalue()


def rows_of(files, pictures):
    """Visual tokens of the file that is served, float32 [pictures, 49, 576]."""
    run = session(files.vision).run
    pixels = (to_array(open_picture(data)).astype(np.float16)[None, None] for data in pictures)
    return np.stack([run(None, {"pixel_values": one})[0][0] for one in pixels]).astype(np.float32)


def test_the_served_model_says_what_the_weights_say_in_pytorch_and_int8_is_near(tmp_path):
    files = vlm_files.prepare()
    written = files.vision.stat().st_mtime_ns
    assert vlm_files.prepare() == files and files.vision.stat().st_mtime_ns == written
    pictures = [picture.file.read_bytes() for picture in catalogue("subset")[7::60]] + [scene()]
    model = vlm.Vlm.load()
    seen = model.see(vlm.pixel_values([square(open_picture(data)) for data in pictures], "cpu"))
    asked = {(question, number): question for question in ASKED for number in range(len(pictures))}
    asked["left", len(pictures) - 1] = "What is on the left?"
    expected = dict(zip(asked, model.answers(list(asked.values()), seen[[n for _, n in asked]]), strict=True))
    assert expected["left", len(pictures) - 1] == "A star."
    form = f"{vlm.BEFORE}<image>{vlm.AFTER}"
    urls = [b"data:image/png;base64," + base64.b64encode(data) for data in pictures]
    requests = {
        key: inputs(text_input=form.format(question), image_url_input=np.array([[urls[key[1]]]], object),
                    max_tokens=vlm.LONGEST, stream=True)
        for key, question in asked.items()
    }  # fmt: skip
    repository = vlm_files.deploy(tmp_path / "models")
    with TritonServer(repository, timeout=90) as server, InferenceServerClient(server.grpc_url) as client:
        for way in ("llava_ensemble", "tensorrt_llm_bls"):  # all at once
            found = gather(client, way, requests)
            said = {key: "".join(r.as_numpy("text_output").flat[0].decode() for r in found[key]) for key in found}
            assert said == expected, way
        describer = Describer(server.grpc_url)  # one alone
        for key in [("What is it?", 0), ("left", len(pictures) - 1)]:
            assert "".join(describer.stream(pictures[key[1]], asked[key])) == expected[key]
        vlm_files.deploy(repository, encoder="int8")  # on the running server
        server.load("vision_encoder")
        small = vlm_files.prepare(encoder="int8")
        served = repository / "vision_encoder" / "1" / "model.onnx"
        assert served.samefile(small.vision) or served.read_bytes() == small.vision.read_bytes()
        assert "".join(describer.stream(pictures[-1], "What is on the left?")) == "A star."
    assert len(set(expected.values())) > 4
    plain, rounded = rows_of(files, pictures), rows_of(small, pictures)
    cosines = (plain * rounded).sum(-1) / np.linalg.norm(plain, axis=-1) / np.linalg.norm(rounded, axis=-1)
    assert 0.9 < cosines.min() and 0.99 < np.median(cosines) < 0.99999
    assert small.vision.stat().st_size < 0.7 * files.vision.stat().st_size
    with pytest.raises(EncoderError, match="encoder must be one of fp32, int8, not 'int3'"):
        vlm_files.prepare(encoder="int3")
