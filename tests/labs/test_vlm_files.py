"""The weights of data/vlm as they are served: the answers are those of the same weights in PyTorch."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient

from cliplab import vlm, vlm_files
from cliplab.pictures import catalogue
from cliplab.prepare import open_picture
from cliplab.vlm_data import square
from servinglab.client import gather, inputs
from servinglab.server import TritonServer

pytestmark = pytest.mark.integration
ASKED = ["What is it?", "What colour is it?", "Is there a dog?"]


def test_the_served_model_says_what_the_weights_say_in_pytorch(tmp_path):
    files = vlm_files.prepare()
    written = files.vision.stat().st_mtime_ns
    assert vlm_files.prepare() == files and files.vision.stat().st_mtime_ns == written
    pictures = catalogue("subset")[7::60]
    model = vlm.Vlm.load()
    seen = model.see(vlm.pixel_values([square(open_picture(p.file.read_bytes())) for p in pictures], "cpu"))
    expected = {asked: model.answers([asked] * len(pictures), seen) for asked in ASKED}
    form = f"{vlm.BEFORE}<image>{vlm.AFTER}"
    end = model.tokenizer.convert_tokens_to_ids(vlm.END)
    requests = {}
    for asked in ASKED:
        for number, picture in enumerate(pictures):
            url = b"data:image/png;base64," + base64.b64encode(picture.file.read_bytes())
            requests[asked, number] = inputs(
                text_input=form.format(asked), image_url_input=np.array([[url]], object), max_tokens=vlm.LONGEST,
                end_id=end, stream=True,
            )  # fmt: skip
    with TritonServer(vlm_files.deploy(tmp_path / "models"), timeout=90) as server:
        with InferenceServerClient(server.grpc_url) as client:
            found = gather(client, "llava_ensemble", requests)
    for (asked, number), results in found.items():
        said = "".join(result.as_numpy("text_output").flat[0].decode() for result in results)
        assert said == expected[asked][number], (asked, pictures[number].id)
    assert len({said for row in expected.values() for said in row}) > 4
