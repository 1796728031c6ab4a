"""Exercises of notebook 01: which nodes share a layer, where a plan runs, what needs a new build."""

from __future__ import annotations

from collections.abc import Callable

from servinglab.checks import Verdict, exercise, right, wrong
from servinglab.errors import did_you_mean

NODES = ("dense_1", "bias_1", "relu_1", "dense_2")
CHANGES = ("weights", "batch", "tokens", "precision", "library", "gpu", "tokenizer")


@exercise("01.1", expects="a list of lists of node names")
def layers(answer: list[list[str]]) -> Verdict:
    if isinstance(answer, str) or any(isinstance(group, str) for group in answer):
        return wrong('a list of lists, please: also a layer of one node is a list, like ["dense_2"]')
    groups = {frozenset(group) for group in answer if len(group)}
    named = [name for group in answer for name in group]
    if strange := [name for name in named if name not in NODES]:
        return wrong(f"there is no node {strange[0]!r}.{did_you_mean(str(strange[0]), NODES)}")
    if sorted(named) != sorted(NODES):
        return wrong(f"use each of {', '.join(NODES)} once")
    said = {
        _groups(*NODES): "that is the graph without any fusion: between two layers the numbers go to memory and back",
        _groups(" ".join(NODES)): "a product needs whole rows of the one before it, so the second begins a new layer",
        _groups("dense_1", "bias_1 relu_1", "dense_2"): "bias and ReLU fit together, and onto the product too: its "
        "results are still on the chip",
        _groups("dense_1 bias_1", "relu_1", "dense_2"): "the ReLU works on single numbers too, like the bias, so it "
        "joins them",
        _groups("dense_1 bias_1", "relu_1 dense_2"): "a ReLU joins the product before it, which has the numbers "
        "at hand, not the one behind it",
        _groups("dense_1", "bias_1 relu_1 dense_2"): "work on single numbers joins the product that makes "
        "them, not the one that reads them",
    }
    if groups == _groups("dense_1 bias_1 relu_1", "dense_2"):
        return right("what works on single numbers is done before the product's results leave the chip")
    return wrong(said.get(frozenset(groups), "a layer holds nodes that follow each other, in the order of the graph"))


def _groups(*lines: str) -> frozenset[frozenset[str]]:
    return frozenset(frozenset(line.split()) for line in lines)


# Questions (plan's version, its targets, runtime's version, GPU) and what a wrong answer to one of them shows.
_RUNS = ("1.7.1", ("sm80", "sm89"), "1.7.1", "sm89")
_CASES = [
    (("1.7.1", ("sm80", "sm89"), "1.8.0", "sm89"), "a newer runtime does not read the plan of an older version"),
    (("1.8.0", ("sm80", "sm89"), "1.7.1", "sm89"), "an older runtime does not read the plan of a newer version"),
    (("1.7.1", ("sm80", "sm89"), "1.7.2", "sm89"), "all of the version must be the same, not only its first numbers"),
    (("1.7.1", ("sm80", "sm89"), "1.7.1", "sm120"), "a newer GPU is no exception: the plan must name it"),
    (("1.7.1", ("sm80", "sm89"), "1.7.1", "sm86"), "a GPU between two targets is still not one of them"),
]


@exercise("01.2", expects="a function that returns True or False")
def runs_here(answer: Callable[..., bool]) -> Verdict:
    if not answer(*_RUNS):
        return wrong("this one runs: version and GPU are those of the plan (1.7.1 on sm89, made for sm80 and sm89)")
    accepted = [said for question, said in _CASES if answer(*question)]
    if len(accepted) == len(_CASES):
        return wrong("your function accepts every plan; two lines of a header can refuse one (sections 3 and 10)")
    if accepted[:3] == [said for _, said in _CASES[:3]]:
        return wrong("the GPU is checked, the version is not: a plan runs under the version that built it only")
    if accepted[-2:] == [said for _, said in _CASES[-2:]]:
        return wrong("the version is checked, the GPU is not: the plan must name it among its targets")
    return wrong(accepted[0]) if accepted else right("the same version, and a GPU that the plan names; nothing else")


@exercise("01.3", expects="a set of names")
def new_build(answer: set[str]) -> Verdict:
    if isinstance(answer, str):
        return wrong("expected a set of names, not one name")
    chosen = set(answer)
    if unknown := sorted(map(str, chosen - set(CHANGES))):
        return wrong(f"{', '.join(unknown)} is not in the list; use {', '.join(CHANGES)}")
    needless = {
        "weights": "weights lie beside the program; section 4 exchanged them, and refit does so officially",
        "batch": "12 lies inside the profile, and every size from its min to its max runs",
        "tokenizer": "the engine never sees text, only token ids",
    }
    needed = {
        "tokens": "400 tokens are beyond the profile's most, and the memory was planned for 256",
        "precision": "types decide which kernels and fusions there are (section 5)",
        "library": "a plan runs under the version that built it only (section 10)",
        "gpu": "sm120 is not among the plan's targets, though the GPU is newer",
    }
    for name, why in needless.items():
        if name in chosen:
            return wrong(f"no build for {name}: {why}")
    for name, why in needed.items():
        if name not in chosen:
            return wrong(f"{name} needs one: {why}")
    return right("sizes beyond the profile, types, version and GPU are compiled in; numbers and text are not")
