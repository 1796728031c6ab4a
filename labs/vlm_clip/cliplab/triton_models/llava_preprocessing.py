"""`preprocessing` of a model that sees: its text goes the usual way, and each `<image>` of it becomes fake ids, one for
each row that the vision encoder will make of the picture.

Tensors and parameters are those of NVIDIA's multimodal `preprocessing`: IMAGE_URL (here data URIs only: a server that
fetches what a client names reaches what only the server may reach) or IMAGE_BYTES, which are pixels, in; PIXEL_VALUES
and OUT_PROMPT_TABLE_EXTRA_IDS out. NVIDIA's gives extra ids only where the client does. This one makes them of the
pixels, so that kept KV blocks of one picture never answer for another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from pathlib import Path

import numpy as np
from PIL import Image
from prepare import SIZE, PictureError, open_picture, to_array

from reference_backend.models import common, preprocessing
from reference_backend.models.common import InputError

MARK = "<image>"  # in the text, where a picture stands
_DATA = re.compile(rb"data:image/[a-z]+;base64,")


class TritonPythonModel(preprocessing.TritonPythonModel):
    def initialize(self, args):
        super().initialize(args)
        config = json.loads(args["model_config"])
        engine, vision = (
            json.loads(Path(common.parameter(config, name), "config.json").read_text("utf-8"))
            for name in ("gpt_model_path", "multimodal_model_path")
        )
        self.vocab_size = engine["pretrained_config"]["vocab_size"]
        self.rows = vision["visual_tokens"]  # of one picture
        self.most = common.number(config, "max_num_images", 1, int)

    def execute(self, requests):
        # An ensemble ends without a word where a tensor of its next step was not made; a BLS model asks for it only
        # when it has a picture.
        needs = iter(["PIXEL_VALUES" in request.requested_output_names() for request in requests])
        return common.respond(requests, lambda inputs: self._encode(inputs, next(needs)), self.name)

    def _encode(self, inputs, needs_picture=False):
        pictures = self._pictures(inputs)
        if needs_picture and pictures is None:
            raise InputError("The request has no picture; give image_url_input, or ask the model tensorrt_llm_bls.")
        named = inputs.pop("PROMPT_TABLE_EXTRA_ID", None)
        outputs = super()._encode(inputs)
        ids = outputs["INPUT_ID"].astype(np.int64) - self.vocab_size
        counts = (ids >= 0).sum(axis=1) // self.rows
        if pictures is not None:
            if wrong := [int(count) for count in counts if count != pictures.shape[1]]:
                raise InputError(
                    f"The text has {MARK} {wrong[0]} times, and the number of pictures is {pictures.shape[1]}; "
                    "they must be equal."
                )
            outputs["PIXEL_VALUES"] = pictures
            if named is None:
                named = np.array([[_name(picture) for picture in row] for row in pictures])
        if named is not None:
            spread = named if len(named.T) == 1 else np.repeat(named, self.rows, axis=1)
            spread = np.broadcast_to(spread, (len(ids), max(ids.max(initial=0) + 1, 1)))
            extra_ids = np.take_along_axis(spread, ids.clip(0), axis=1)
            outputs["OUT_PROMPT_TABLE_EXTRA_IDS"] = np.where(ids >= 0, extra_ids, 0).astype(np.uint64)
        return outputs

    def _ids(self, query, pad_id):
        """As for text alone, but for each mark the next `rows` fake ids."""
        plain = self.tokenizer
        try:
            self.tokenizer = _Marked(plain, self.vocab_size, self.rows)
            return super()._ids(query, pad_id)
        finally:
            self.tokenizer = plain

    def _pictures(self, inputs):
        """float16 [texts, pictures, 3, SIZE, SIZE], None without pictures."""
        urls, pixels = inputs.pop("IMAGE_URL", None), inputs.pop("IMAGE_BYTES", None)
        if urls is None and pixels is None:
            return None
        rows, read = (urls, _from_url) if pixels is None else (pixels, Image.fromarray)
        if not 1 <= rows.shape[1] <= self.most:
            raise InputError(f"The number of pictures is {rows.shape[1]}; this model takes from 1 to {self.most}.")
        if pixels is not None and (pixels.ndim != 5 or pixels.shape[-1] != 3 or not pixels.size):
            raise InputError(
                f"image_bytes_input is {list(pixels.shape)}; give pixels as [texts, pictures, height, width, 3]."
            )
        found = np.zeros((*rows.shape[:2], 3, SIZE, SIZE), np.float16)
        for place in np.ndindex(*rows.shape[:2]):
            try:
                found[place] = to_array(read(rows[place]))  # multiples of 1/128: float16 holds them exactly
            except (PictureError, TypeError, ValueError) as error:
                raise InputError(f"Picture {place[1] + 1} of {rows.shape[1]} of text {place[0] + 1}: {error}") from None
        return found


class _Marked:
    """A tokenizer for texts with marks."""

    def __init__(self, plain, vocab_size, rows):
        self._plain, self._vocab_size, self._rows = plain, vocab_size, rows

    def encode(self, text, add_special_tokens):
        first, *others = text.split(MARK)
        ids, fake = self._plain.encode(first, add_special_tokens), self._vocab_size
        for part in others:
            ids += [*range(fake, fake + self._rows), *(self._plain.encode(part, False) if part else ())]
            fake += self._rows
        return ids


def _from_url(url):
    found = _DATA.match(url)
    if not found:
        raise PictureError(
            f"'{url[:40].decode(errors='replace')}' is not fetched; send the picture itself, as data:image/png;base64,…"
        )
    try:
        return open_picture(base64.b64decode(url[found.end() :], validate=True))
    except binascii.Error as error:
        raise PictureError(f"its base64 is damaged ({error}).") from None


def _name(picture):
    """A number that two different pictures share by chance only, once in 2^63; never 0, which stands for no table."""
    return np.uint64(int.from_bytes(hashlib.sha256(picture.tobytes()).digest()[:8], "big") | 1)
