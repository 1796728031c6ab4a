"""The small vision-language model: exact answers, an honest split, tokens in their places, updates that merge."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from scipy import ndimage
from transformers import LlamaConfig, LlamaForCausalLM

from cliplab import vlm, vlm_data, vlm_pictures, vlm_training
from cliplab.mini_clip import VisionTower
from cliplab.vlm_pictures import SHAPE_COLOURS, SHAPES, shape
from servinglab import assets
from servinglab.errors import CourseError

WORDS = {"one": 1, "two": 2, "three": 3, "four": 4}


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(assets.tokenizer("smollm2"), local_files_only=True)


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=49152, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def test_answers_agree_with_what_is_drawn():
    """The pictures alone are read again: connected regions are counted, and located, by their colour."""
    rng, checked = np.random.default_rng(0), set()
    for _ in range(60):
        first, second = rng.permutation(len(SHAPES))[:2]
        colours = rng.permutation(["red", "green", "blue", "yellow"])
        things = [shape(SHAPES[n], colour, rng) for n, colour in zip((first, second), colours, strict=False)]
        counts = [int(rng.integers(1, 3)), int(rng.integers(0, 3))]
        many = rng.random() < 0.5
        given = [things[0]] * counts[0] + [things[1]] * counts[1] if many else things
        scene = vlm_pictures.compose("many" if many else "row", given, rng)
        pixels = np.asarray(scene.image).astype(int)
        regions = {}
        for thing in things:
            near = np.abs(pixels - np.array(SHAPE_COLOURS[thing.colour])).max(axis=-1) < 40
            regions[thing.name] = ndimage.label(ndimage.binary_opening(near, iterations=2))
        colour_of = {thing.name: thing.colour for thing in things}
        for question in vlm_data.questions(scene, ["zebra"], rng):
            text, answer = question.text, vlm_data.normal(question.answer)
            named = [name for name in colour_of if name in text]
            if question.kind == "count" and named:
                assert regions[named[0]][1] == WORDS[answer], text
            elif question.kind == "colour":
                assert colour_of[named[0]] == answer
            elif question.kind in ("beside", "place"):
                middle = {n: np.argwhere(labels > 0)[:, 1].mean() for n, (labels, _) in regions.items()}
                assert answer == (min if "left" in text else max)(middle, key=middle.get), text
            elif question.kind == "there":
                assert (answer == "yes") == bool(named), text
            checked.add(question.kind)
    assert checked == {"count", "colour", "beside", "place", "there"}


@pytest.mark.parametrize("colour", list(SHAPE_COLOURS))
def test_a_measured_colour_is_the_colour_painted(colour):
    painted = shape("star", colour, np.random.default_rng(1)).pixels
    assert vlm_pictures.measured_colour(painted) == colour
    half = painted.copy()
    half[: len(half) // 2, :, :3] = SHAPE_COLOURS["green" if colour == "red" else "red"]
    assert vlm_pictures.measured_colour(half) == ""


def test_no_held_out_name_is_in_a_training_scene(tmp_path):
    names = [f"{first} {last}" for first in ("old", "new") for last in ("cat", "dog", "apple", "pen", "bus", "owl",
             "horse", "ship", "cup", "hat", "key", "drum", "lamp", "ring", "sock", "tree")]  # fmt: skip
    pixels = np.zeros((40, 40, 4), np.uint8)
    pixels[10:30, 10:30] = (200, 30, 30, 255)
    Image.fromarray(pixels).save(tmp_path / "square.png")
    data = vlm_data.small((tmp_path / "square.png").read_bytes())
    known = [{"source": source, "caption": name} for name in names for source in ("noto", "emojione")]
    vlm_data.Stored([data] * len(known), known).save(tmp_path / "pictures.npz")
    sets = vlm_data.things(vlm_data.Stored.load(tmp_path / "pictures.npz"), names)
    last = {kind: {thing.name.split()[-1] for thing in found} for kind, found in sets.items()}
    assert last["train"] and last["new_things"] and not last["train"] & last["new_things"]
    assert last["known_things"] == last["train"] and len(sets["known_things"]) == len(sets["train"])
    assert len(sets["train"]) + len(sets["new_things"]) // 2 == len(names)
    trained = [thing.name for thing in sets["train"]]
    for number in range(20):
        _, asked = vlm_training.Scenes(sets["train"], trained, 20, 0)[number]
        said = " ".join(f"{question.text} {question.answer}" for question in asked)
        assert not any(word in said for word in last["new_things"]), said


def test_visual_tokens_stand_in_their_places_and_only_answers_count(tokenizer):
    model = tiny()
    asked = [vlm_data.Question("what", "What is it?", "A dog."), vlm_data.Question("there", "Is there a cat?", "No.")]
    ids, labels = vlm_training.conversation(tokenizer, asked)
    text = tokenizer.decode([id for id in ids if id < len(tokenizer)])
    assert text == (
        "<|im_start|>user\n\nWhat is it?<|im_end|>\n<|im_start|>assistant\nA dog.<|im_end|>\n"
        "<|im_start|>user\nIs there a cat?<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>"
    )
    assert tokenizer.decode([label for label in labels if label >= 0]) == "A dog.<|im_end|>No.<|im_end|>"
    visual = torch.randn(1, vlm.TOKENS, 16)
    start = len(tokenizer(vlm.BEFORE, add_special_tokens=False)["input_ids"])
    words = torch.tensor([[id if id < len(tokenizer) else 0 for id in ids]])
    expected = model.model.embed_tokens(words)
    expected[0, start : start + vlm.TOKENS] = visual[0]
    assert torch.equal(vlm.embed(model.model.embed_tokens, torch.tensor([ids]), visual), expected)

    target = torch.tensor([[id if label >= 0 else -100 for id, label in zip(ids, labels, strict=True)]])
    right = model(inputs_embeds=expected, labels=target).loss  # transformers shifts and masks on its own
    short = vlm_training.conversation(tokenizer, asked[:1])
    rows, marks = vlm_training.padded([(ids, labels)])
    assert torch.allclose(vlm_training.answer_loss(model, rows, marks, visual), right, atol=1e-5)
    rows, marks = vlm_training.padded([(ids, labels), short])  # a shorter row, padded
    alone = vlm_training.answer_loss(model, *vlm_training.padded([short]), visual)
    counts = [sum(label >= 0 for label in row[1]) for row in ((ids, labels), short)]
    mean = (right * counts[0] + alone * counts[1]) / sum(counts)
    assert torch.allclose(vlm_training.answer_loss(model, rows, marks, visual.repeat(2, 1, 1)), mean, atol=1e-5)


def test_a_merged_update_says_what_the_unmerged_says_and_survives_the_file(tmp_path):
    model, plain = tiny(), tiny()
    factors = vlm.attach(model, 4)
    assert len(factors) == 2 * 7 * 2
    for weight in factors.values():
        torch.nn.init.normal_(weight.data, std=0.2).copy_(weight.data.half())  # what the file can hold
    ids = torch.arange(20)[None] * 7
    expected = model(ids).logits
    assert not torch.allclose(expected, plain(ids).logits, atol=1e-2)
    projector = vlm.Projector(16)
    vlm.save(tmp_path, projector, factors, {"rank": 4})
    again, stored, card = vlm.load(tmp_path)
    assert card == {"rank": 4}
    vlm.merge(plain, stored)
    assert torch.allclose(plain(ids).logits, expected, atol=1e-4)
    seen = torch.randn(2, vlm.TOKENS, vlm.SEEN)
    assert torch.allclose(again(seen), projector(seen), atol=1e-2)
    with pytest.raises(CourseError, match="does not fit this language model"):
        vlm.merge(plain, stored | {"model.layers.9.mlp.up_proj.up": torch.zeros(1, 1)})
    lost = "model.layers.1.mlp.up_proj"
    with pytest.raises(CourseError, match=f"{lost} is missing, and of 0 other layers"):
        vlm.merge(tiny(), {name: factor for name, factor in stored.items() if not name.startswith(lost)})


DAMAGES = ["nothing there", "cut off", "another model", "a number", "not finite", "no card", "[]"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_are_one_sentence(tmp_path, damage):
    vlm.save(tmp_path, vlm.Projector(16), {}, {})
    path = tmp_path / vlm.FILE
    if damage == "nothing there":
        path.unlink()
    elif damage == "cut off":
        path.write_bytes(path.read_bytes()[:1000])
    elif damage == "another model":
        save_file({"weight": torch.zeros(2)}, path)
    elif damage == "a number":
        save_file({"projector.place": torch.tensor(1.0)}, path)
    elif damage == "not finite":
        vlm.save(tmp_path, vlm.Projector(16), {"layer.up": torch.tensor([1.0, torch.nan])}, {})
    else:
        (tmp_path / vlm.CARD).write_text({"no card": "{"}.get(damage, damage), encoding="utf-8")
    with pytest.raises(CourseError, match=r"holds no weights of the vision-language model .*git checkout data") as said:
        vlm.load(tmp_path)
    assert "\n" not in str(said.value)


def test_weights_go_with_the_trunk_that_they_were_trained_on(tmp_path):
    assert len(vlm.load()[2]["trunk_sha256"]) == 64
    vlm.save(tmp_path, vlm.Projector(16), {}, {"trunk_sha256": "0" * 64})
    with pytest.raises(CourseError, match="was trained on another trunk"):
        vlm.load(tmp_path)


def test_the_grid_holds_what_the_trunk_sees():
    """The mean of its first part is what mini-CLIP's trunk gives; its second part is the finer grid, cell by cell."""
    trunk = VisionTower.load().trunk
    pixels = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.inference_mode():
        seen = vlm.Grid(trunk)(pixels)
        x = torch.nn.functional.relu6(trunk.stem(pixels))
        for block in list(trunk.blocks)[:11]:
            x = block(x)
    assert seen.shape == (1, vlm.TOKENS, vlm.SEEN)
    assert torch.allclose(seen[..., :1280].mean(dim=1), trunk(pixels), atol=1e-4)
    row, column = 2, 5
    cell = x[0, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].reshape(-1)
    assert torch.allclose(seen[0, 7 * row + column, 1280:], cell, atol=1e-5)


def test_a_lesson_shows_the_class_that_it_names():
    torch.manual_seed(0)
    classifier = torch.nn.Linear(1280, 5).requires_grad_(False)
    seen = (torch.rand(3, vlm.TOKENS, vlm.SEEN) * (torch.rand(3, vlm.TOKENS, vlm.SEEN) > 0.9) * 3).half()
    asked = [[vlm_data.Question("what", "What is it?", "A dog.")]] * 3
    found = vlm_training.lessons(vlm_training.Shown(seen, asked), classifier, list("vwxyz"), 2, 0)
    chance = torch.softmax(classifier(found.seen[..., :1280].float().mean(dim=1)), dim=-1)
    for row, questions in zip(chance, found.asked, strict=True):
        assert questions[0].answer == f"A {'vwxyz'[int(row.argmax())]}." and row.max() > 0.75


def test_a_token_is_told_the_words_of_the_class_in_its_cell(tokenizer):
    """Before training, a projector with names differs from one without by the words of the class found there."""
    model, classifier = tiny(), torch.nn.Linear(1280, vlm.CLASSES).requires_grad_(False)
    torch.nn.init.zeros_(classifier.weight)[7, 100] = 60.0
    torch.nn.init.zeros_(classifier.bias)[9] = 20.0  # of an empty cell, and of the whole picture
    names = ["cup"] * 7 + ["great owl", "cup", "dog"] + ["cup"] * 990
    told, plain = (_projector(model, tokenizer, classifier, some) for some in (names, []))
    seen = torch.zeros(1, vlm.TOKENS, vlm.SEEN)
    seen[0, 5, 100] = 1.0
    found = (told(seen) - plain(seen))[0]
    ids = [tokenizer(f" {name}", add_special_tokens=False)["input_ids"] for name in ("great owl", "dog")]
    owl, dog = (model.model.embed_tokens(torch.tensor(some)).mean(dim=0) for some in ids)
    assert torch.allclose(found[5], owl + dog, atol=1e-5) and torch.allclose(found[6], 2 * dog, atol=1e-5)


def _projector(model, tokenizer, classifier, names):
    torch.manual_seed(0)
    return vlm_training.new_projector(model, tokenizer, classifier, names, 16)


def test_a_class_is_called_by_its_longest_known_end():
    known = {"shark", "sea lion", "lion", "dog"}
    asked = ("great white shark", "sea lion", "Afghan Hound", "dog")
    assert [vlm_data.plain(name, known) for name in asked] == ["shark", "sea lion", "Afghan Hound", "dog"]


def test_the_usual_answer_is_the_most_frequent_of_its_kind():
    rows = [[vlm_data.Question("count", "", "Two."), vlm_data.Question("there", "", "No.")],
            [vlm_data.Question("count", "", "One."), vlm_data.Question("count", "", "Two.")]]  # fmt: skip
    assert vlm_data.usual(rows) == {"count": "Two.", "there": "No."}


def test_the_clock_ends_a_stage_that_learns(tokenizer, monkeypatch):
    model, clock = tiny(), itertools.count()
    monkeypatch.setattr(vlm_training.time, "monotonic", lambda: float(next(clock)))
    projector = vlm_training.new_projector(model, tokenizer, torch.nn.Linear(1280, vlm.CLASSES), [], 16)
    row = vlm_training.conversation(tokenizer, [vlm_data.Question("what", "What is it?", "A dog.")])
    batch = (*vlm_training.padded([row]), torch.rand(1, vlm.TOKENS, vlm.SEEN))
    curve = vlm_training.stage(model, projector, itertools.repeat(batch), steps=10**6, rate=0.1, every=5, seconds=30.0,
                               factors=vlm.attach(model, 4))  # fmt: skip
    assert 20 <= curve[-1]["step"] <= 30 and curve[-1]["loss"] < curve[0]["loss"] - 0.05
