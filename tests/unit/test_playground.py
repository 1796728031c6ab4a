"""What the playground draws and calculates, by hand on four tokens; with a server: tests/integration."""

from __future__ import annotations

import math
import re
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from servinglab.errors import CourseError
from servinglab.figures import playground as figures
from servinglab.playground import SETTINGS, Answer, playground

LOGITS = np.log([[0.4, 0.3, 0.2, 0.1]])  # of tokens 0 to 3, as the letters a to d
LETTERS = SimpleNamespace(decode=lambda ids, skip_special_tokens=True: "".join(chr(97 + i) for i in ids))


def answered(token=1, prompt=(), **settings):
    """An answer of one token."""
    answer = Answer(LETTERS, {name: first for name, (first, *_) in SETTINGS.items()} | settings)
    answer.prompt_ids = list(prompt)
    arrays = {"output_ids": np.array([[[token]]]), "generation_logits": LOGITS[None, None]}
    answer.add(SimpleNamespace(as_numpy=arrays.get))
    return answer


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_p": 0.0}, [1, 0, 0, 0]),  # neither top-k nor top-p: greedy
        ({"temperature": 0.0, "top_k": 3}, [1, 0, 0, 0]),
        ({"top_k": 2, "top_p": 0.0}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_k": 2, "top_p": 0.5}, [1, 0, 0, 0]),  # 4/7 is divided first, and reaches 0.5
        ({"temperature": 0.5}, np.array([16, 9, 4, 1]) / 30),
        ({"repetition_penalty": 2.0, "prompt": [0, 0]}, np.array([0.16, 0.3, 0.2, 0.1]) / 0.76),  # 0.4² once
    ],
)
def test_bars_are_what_the_settings_make_of_the_model(settings, expected):
    names, before, after = answered(**settings).next_token()
    assert list(names.values()) == ["'a'", "'b'", "'c'", "'d'"] and before == pytest.approx(np.exp(LOGITS[0]))
    assert after == pytest.approx(np.asarray(expected, float))


def test_a_token_has_its_piece_and_the_model_s_log_probability():
    answer = answered(temperature=0.1)
    assert answer.pieces == ["b"] and answer.log_probs == pytest.approx([math.log(0.3)])


def test_a_page_escapes_shades_and_says_what_was_cut():
    names, before, after = {0: "'<b>'", 3: "'d'"}, np.array([0.4, 0.3, 0.2, 0.1]), np.array([1.0, 0, 0, 0])
    page = figures.page(["<b>", "x"], np.log([0.91, 0.005]), names, before, after)
    assert "<b>" not in page and page.count("&lt;b&gt;") == 2
    colours = re.findall(r'background:(#\w+);color:#\w+" title="[^"]', page)
    assert colours == [figures.SHADES[-0.1054][0], figures.SHADES[-math.inf][0]]
    assert re.findall(r"<span>([^<]+)</span>", page) == ["100 %", "cut", "cut"]


def test_a_line_of_the_picture_ends_only_where_the_text_has_a_space():
    prompt, pieces = "x" * 100 + " is a", [" frame", "work", " for", " long", "-", "legged", " words", "."] * 9
    fig = figures.picture(
        prompt, pieces, np.zeros(len(pieces)), {0: "'a'"}, *np.array([[0.4, 0.3, 0.3, 0], [0, 0.4, 0.3, 0.3]])
    )
    rows = {}
    for letter in fig.axes[0].texts:
        rows.setdefault(letter.get_position()[1], []).append(letter.get_text())
    *lines, _ = map("".join, rows.values())  # the last one is the legend
    assert lines == textwrap.wrap(prompt + "".join(pieces), 84, break_on_hyphens=False)
    _, longest = fig.axes[1].get_xlim()
    assert longest > 1, "the bar of all others"
    figures.plt.close(fig)


def test_a_setting_that_is_none_is_named():
    with pytest.raises(CourseError, match="no setting 'topk'; it has temperature, top_k"):
        playground("127.0.0.1:1", "x", topk=3)
