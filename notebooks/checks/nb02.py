"""Exercises of notebook 02: rows of the fused qkv, an old build command in a new version, sequences in a KV cache."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from numbers import Integral

from engines import EngineError
from servinglab.checks import Verdict, exercise, right, wrong


@exercise("02.1", expects="a function that returns a whole number")
def qkv_rows(answer: Callable[..., int]) -> Verdict:
    one, four, copied, few = (
        answer(*case) for case in ((9, 3, 64, 1), (32, 32, 128, 4), (8, 1, 256, 4), (8, 4, 8, 8))
    )
    if one == 3 * 9 * 64:
        return wrong("there is a q for each of the 9 heads, k and v only for 3: SmolLM2 has grouped-query attention")
    if one == (9 + 3) * 64:
        return wrong("keys and values are two tensors: the KV heads count twice")
    if one != 960:
        return wrong(f"for SmolLM2 on one rank you return {one}; there are 960 rows (section 1)")
    if four == 3 * 32 * 128:
        return wrong("that is the tensor of the whole model; each of 4 ranks has a quarter of the heads")
    if four == (8 + 2 * 32) * 128:
        return wrong("with 32 KV heads and 4 ranks, keys and values are cut as well, not only the queries")
    if four != 3 * 8 * 128:
        return wrong(f"for 32 heads of 128 on 4 ranks you return {four}; each rank has 8 heads of q, k and v")
    if copied == (2 + 2 / 4) * 256:
        return wrong("that cuts one KV head into four pieces; a head stays whole, and every rank gets a copy")
    if copied == 2 * 256:
        return wrong("a rank without any KV head has nothing to attend to: it holds at least one")
    if (copied, few) != (4 * 256, 3 * 8):
        return wrong("look at the case of fewer KV heads than ranks: each rank has exactly one of them")
    if not _whole(one, four, copied, few):
        return wrong("the number is right, but a float; rows are counted in whole numbers, so divide with //")
    return right("queries are cut, KV heads too, but never below one: then neighbours hold the same")


@exercise("02.2", expects='a text that begins with "trtllm-build"')
def command(answer: str) -> Verdict:
    from engines import flags

    if not isinstance(answer, str):
        return wrong("one text, please: the whole command, as you would type it")
    program, *words = shlex.split(answer.replace("\\\n", " ")) or [""]
    if program != "trtllm-build":
        return wrong('begin with "trtllm-build"')
    try:
        cautions = flags.check(program, "1.2.1", words)
    except EngineError as error:
        return wrong(str(error))
    given = dict(flags.pairs(words))
    length = given.get("--max_seq_len")
    if length is None and given.get("--max_num_tokens") in ("200", "1000", "1200"):
        return wrong("--max_num_tokens bounds one step over all requests together; one sequence has --max_seq_len")
    if length is None:
        return wrong("nothing bounds the answer now: without --max_seq_len it is as long as the model was trained for")
    if length == "200":
        return wrong("--max_seq_len counts prompt and answer together; 200 leaves no room for a prompt of 1,000")
    if length == "1000":
        return wrong("a prompt of 1,000 tokens fills max_seq_len, and no token is left for the answer")
    if length != "1200":
        return wrong(f"prompts of 1,000 tokens and answers of 200 do not come to {length}")
    if cautions:
        return wrong(cautions[0])
    wanted = {"--checkpoint_dir": "float16", "--output_dir": "mine", "--max_batch_size": "8", "--max_input_len": "1000"}
    for name, value in wanted.items():
        if given.get(name) != value:
            return wrong(f"the guide says {name} {value}, and that flag did not change")
    if (kind := given.get("--kv_cache_type")) is None:
        return wrong("the guide asks for a paged KV cache; in 1.2.1 another flag says so (section 6)")
    if kind != "paged":
        return wrong(f"that flag is the right one, but the guide asks for a paged KV cache, not for {kind}")
    if more := [name for name in given if name not in (*wanted, "--max_seq_len", "--kv_cache_type")]:
        return wrong(f"the guide does not say {more[0]}; leave it out")
    return right("1,000 + 200 tokens in one sequence, and the paged cache under its new name")


def _whole(*numbers: object) -> bool:
    return all(isinstance(number, Integral) for number in numbers)


# free bytes, layers, heads, KV heads, head size, tokens, bytes of a number: a Llama with 8 KV heads, in float16.
_CARD = (10_000_000_000, 32, 32, 8, 128, 2048, 2)


@exercise("02.3", expects="a function that returns a whole number")
def sequences(answer: Callable[..., int]) -> Verdict:
    got, wide = answer(*_CARD), answer(*_CARD[:-1], 4)
    each = 2 * 32 * 8 * 128 * 2048 * 2  # bytes of one sequence
    exact = _CARD[0] / each  # 37.25
    whole, none = answer(2 * each, *_CARD[1:]), answer(each - 1, *_CARD[1:])
    if (got, wide, whole, none) == (37, 18, 2, 0):
        if not _whole(got, wide, whole, none):
            return wrong("the number is right, but a float; sequences are counted in whole numbers, so divide with //")
        return right("two tensors, every layer, every KV head, every token; a part of a sequence does not count")
    said = {
        2 * exact: "a token leaves a key and a value: two tensors in each layer",
        exact / 4: "the cache holds the 8 KV heads; the 32 query heads are computed and forgotten",
        exact * 32: "every layer has a cache of its own",
        exact * 2048: "that many tokens fit; each sequence has 2,048 of them",
        exact * 8: "every KV head keeps its own keys and values",
    }
    if abs(got - wide) <= 1 and got > 1:
        return wrong("number_bytes makes no difference in your function; float32 takes twice as much as float16")
    if got == exact:
        return wrong("37.25 sequences: the quarter is no sequence, round down")
    if got == 38:
        return wrong("the 38th sequence does not fit whole; round down")
    for number, why in said.items():
        if abs(got - number) <= 1:
            return wrong(why)
    return wrong(f"for 10 GB and 2,048 tokens you return {got}; one sequence takes {each:,} bytes")
