"""MiniLM, a sentence encoder, behind Triton: its ONNX file (`export`), and the model.py that runs it (`CODE`)."""

import shutil
import warnings
from pathlib import Path

import torch
from transformers import AutoModel, logging

from servinglab import assets

CODE = """\
import json
import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        folder = json.loads(args["model_config"])["parameters"]["folder"]["string_value"]
        self.tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
        self.tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(folder + "/model.onnx", options)

    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0] for request in requests]
        tokens = self.tokenizer.encode_batch([text.decode() for row in rows for text in row])
        given = {"ids": np.array([t.ids for t in tokens]), "mask": np.array([t.attention_mask for t in tokens])}
        vectors = self.session.run(None, given)[0]
        parts = np.split(vectors, np.cumsum([len(row) for row in rows])[:-1])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("vector", part)]) for part in parts]
"""


class _Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bert = AutoModel.from_pretrained(assets.resolve("minilm"), attn_implementation="eager")

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden, share = self.bert(input_ids=ids, attention_mask=mask)[0], mask.unsqueeze(-1).float()
        return torch.nn.functional.normalize((hidden * share).sum(1) / share.sum(1), dim=-1)


def export(folder: Path) -> None:
    """Write model.onnx, from ids and mask [batch, tokens] int64 to vector [batch, 384], and tokenizer.json."""
    logging.disable_progress_bar()
    shutil.copy(assets.resolve("minilm") / "tokenizer.json", folder)
    ones, sizes = torch.ones((2, 16), dtype=torch.int64), {0: "batch", 1: "tokens"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(_Encoder().eval(), (ones, ones), folder / "model.onnx", dynamo=False,
                          output_names=["vector"], input_names=["ids", "mask"],
                          dynamic_axes={"ids": sizes, "mask": sizes})  # fmt: skip
