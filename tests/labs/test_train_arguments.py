"""train.py refuses what would fail only after its pictures were fetched, or when the weights are written."""

from __future__ import annotations

import sys

import pytest

import train


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "0"], "--steps is 0; give 1 or more"),
        (["--dropout", "1.5"], "--dropout is 1.5"),
        (["--device", "abacus"], "--device abacus cannot be used here"),
        (["--out", "/proc/here"], "--out /proc/here cannot be made"),
        ([], "Training needs resvg_py: pip install resvg-py "),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_fetched(arguments, said, monkeypatch, capsys):
    def run(_):
        raise ModuleNotFoundError("No module named 'resvg_py'", name="resvg_py")

    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    monkeypatch.setattr(train, "run", run)
    assert train.main() == 1
    output = capsys.readouterr().err
    assert output.startswith(said) and output.count("\n") == 1
