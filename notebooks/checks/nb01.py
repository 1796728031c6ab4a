"""Exercises of notebook 01: which nodes share a layer, a build for given users, what needs a new build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


_SHAPES = {"min": (1, 1, 64), "opt": (4, 16, 64), "max": (32, 128, 64)}
_SHAPE_WHY = {
    "min": "one sentence of one token must pass, too",
    "opt": "users mostly send 4 sentences of 16 tokens: optimise for these",
    "max": "32 sentences of 128 tokens must pass, and no more memory is planned",
}


class _Watched:
    """A builder that remembers the profiles it made."""

    def __init__(self, builder: Any):
        self.builder, self.profiles = builder, []

    def create_optimization_profile(self) -> Any:
        self.profiles.append(self.builder.create_optimization_profile())
        return self.profiles[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)


@exercise("01.2", expects="a function for_users(builder, config) that adds a profile and targets")
def for_users(answer: Callable[[Any, Any], object]) -> Verdict:
    import tensorrt_rtx_bindings as trt

    class Quiet(trt.ILogger):
        def log(self, severity: object, text: str) -> None:
            pass

    quiet = Quiet()
    builder = trt.Builder(quiet)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    x = network.add_input("x", trt.float32, (-1, -1, 64))
    network.mark_output(network.add_activation(x, trt.ActivationType.RELU).get_output(0))
    config, watched = builder.create_builder_config(), _Watched(builder)
    answer(watched, config)
    if not config.num_optimization_profiles:
        made = "you made a profile and did not add it" if watched.profiles else "there is no profile"
        return wrong(f"{made}: config.add_optimization_profile(…), or the build refuses open sizes")
    shapes = dict(zip(_SHAPES, map(tuple, watched.profiles[-1].get_shape("x")), strict=False))
    if not shapes:
        return wrong('the profile has no shapes for "x"')
    for name, shape in _SHAPES.items():
        if shapes[name] == (shape[1], shape[0], 64) != shape:
            return wrong(f"{name} is {shapes[name]}: B, the sentences, come before T, the tokens")
        if shapes[name] != shape:
            return wrong(f"{name} is {shapes[name]}: {_SHAPE_WHY[name]}")
    kinds = {config.get_compute_capability(index).name for index in range(config.num_compute_capabilities)}
    if not kinds:
        return wrong("no target is set, so the plan is made for five kinds of GPU, of which your users have two")
    if kinds == {"SM89"} or kinds == {"SM120"}:
        return wrong(f"{kinds.pop()} is one of the two GPUs: a plan runs on none that it does not name")
    if kinds != {"SM89", "SM120"}:
        named = ", ".join(sorted(kinds))
        return wrong(f"targets are {named}; an RTX 4090 is 8.9, an RTX 5090 is 12.0, nothing else counts")
    if builder.build_serialized_network(network, config) is None:
        return wrong("sizes and targets are right, but something else in your config stops the build")
    return right("it was built: one profile from one token to 32 x 128, and both GPUs by name")


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
        "library": "a plan runs under the version that built it only (section 9)",
        "gpu": "sm120 is not among the plan's targets, though the GPU is newer",
    }
    for name, why in needless.items():
        if name in chosen:
            return wrong(f"no build for {name}: {why}")
    for name, why in needed.items():
        if name not in chosen:
            return wrong(f"{name} needs one: {why}")
    return right("sizes beyond the profile, types, version and GPU are compiled in; numbers and text are not")
