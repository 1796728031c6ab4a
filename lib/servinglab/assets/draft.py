"""A draft model in the course's own data: a few trained layers that become a checkpoint with the rest of their target.

The draft of notebook 10 shares its target's embedding, head and tokenizer. So `data/draft/` keeps 14 MB, and what is
put together here is an ordinary checkpoint of 141 MB that every tool reads.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from servinglab.assets.catalogue import Layers
from servinglab.assets.store import AssetError
from servinglab.errors import CourseError
from servinglab.root import find_root

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_SHARED = ("model.embed_tokens.weight", "lm_head.weight")


def stored(layers: Layers) -> Path:
    """The file of the trained layers in the checkout. Raises AssetError when it is not there."""
    try:
        path = find_root() / "data" / layers.file
    except CourseError as error:
        raise AssetError(f"The draft is a file of the course's folder: {error}") from None
    if not path.is_file():
        raise AssetError(
            f"{path} is missing; bring it back with `git checkout data`, or train it with tools/train_draft.py."
        )
    return path


def assemble(target: Path, layers: Path, out: Path) -> None:
    """Write config.json, float32 model.safetensors and the tokenizer of a draft into the existing folder `out`.

    target: the checkpoint whose embedding, head and tokenizer the draft shares; layers: model.layers.N.* and
    model.norm.weight. Raises AssetError when the two do not fit each other.
    """
    import numpy as np
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load_file, save_file

    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    try:
        own = {name: weight.astype(np.float32) for name, weight in load_file(layers).items()}
    except SafetensorError as error:
        raise AssetError(f"{layers} is damaged ({error}); bring it back with `git checkout data`.") from None
    numbers = {int(n) for name in own for n in re.findall(r"^model\.layers\.(\d+)\.", name)}
    expected, shared = {}, {}
    for file in sorted(target.glob("*.safetensors")):
        with safe_open(file, "numpy") as opened:
            for name in opened.keys():
                if name in _SHARED:
                    shared[name] = opened.get_tensor(name).astype(np.float32)
                elif name.startswith("model.layers.0.") or name == "model.norm.weight":
                    expected[name] = tuple(opened.get_slice(name).get_shape())
    wanted = {
        name.replace(".layers.0.", f".layers.{number}."): shape
        for name, shape in expected.items()
        for number in range(len(numbers))
    }
    if not numbers or {name: weight.shape for name, weight in own.items()} != wanted:
        raise AssetError(f"The layers in {layers} do not fit the model in {target}; train them for it.")
    save_file({**shared, **own}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod((target / "config.json").stat().st_mode)  # safetensors makes it private
    config |= {"num_hidden_layers": len(numbers)}
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name in _TOKENIZER:
        if (target / name).exists():
            shutil.copyfile(target / name, out / name)
