"""Write the drawings of the notebooks, pictures/NN_name.svg beside them. python tools/draw_pictures.py (make pictures).

A drawing shows how something works and holds no measured number; what was measured is a figure of its notebook. All
share one look: a white card, so that a dark page shows them too, WIDTH pixels wide, no text below 13 pixels, and the
colours of servinglab.figures.style, where a model has the same one in every notebook.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from servinglab.figures.style import CARD, FAINT, INK, LANES, MODELS, QUIET, STRATEGIES, tint
from servinglab.root import find_root

WIDTH = 800
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
READ, COMPUTE, WRITE = MODELS["preprocessing"], MODELS["tensorrt_llm"], MODELS["postprocessing"]
CALL, GATHER, WAIT = MODELS["tensorrt_llm_bls"], MODELS["ensemble"], STRATEGIES["temperature"]
RANKS = (READ, GATHER, WRITE)  # of a model over three GPUs

Point = tuple[float, float]


class Picture:
    """An SVG that grows part by part; y grows downwards, as in every SVG."""

    def __init__(self, height: int, title: str, words: str):
        """``title``: what it shows, also written on top. ``words``: the same for those who cannot see it."""
        self.height, self.title, self.words = height, title, " ".join(words.split())
        self.parts: list[str] = []
        self.text(16, 28, title, size=17, weight="bold")

    def add(self, tag: str, words: str | None = None, **look: object) -> None:
        pairs = ((name.replace("_", "-"), value) for name, value in look.items() if value is not None)
        start = f"<{tag} " + " ".join(f"{name}={quoteattr(_number(value))}" for name, value in pairs)
        self.parts.append(f"{start}/>" if words is None else f"{start}>{escape(words)}</{tag}>")

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 14,
        anchor: str | None = None,
        colour: str = INK,
        weight: str | None = None,
    ) -> None:
        """Lines of text; y is the baseline of the first."""
        for line, part in enumerate(words.splitlines()):
            look = {"font_size": size, "text_anchor": anchor, "fill": colour, "font_weight": weight}
            self.add("text", part, x=x, y=y + 1.3 * size * line, **look)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        fill: str = CARD,
        *,
        edge: str | None = QUIET,
        dashed: bool = False,
        round: float = 5,
        **look: object,
    ) -> None:
        """A box with words in its middle."""
        dashes = "6 4" if dashed else None
        size = {"x": x, "y": y, "width": width, "height": height, "rx": round or None}
        self.add("rect", **size, fill=fill, stroke=edge, stroke_width=1.3 if edge else None, stroke_dasharray=dashes)
        if words:
            lines, size = words.count("\n"), look.get("size", 14)
            self.text(x + width / 2, y + height / 2 + size * (0.36 - 0.65 * lines), words, anchor="middle", **look)

    def arrow(self, *points: Point, colour: str = INK, dashed: bool = False, head: bool = True) -> None:
        """A line along the points, with a head at the last one."""
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self.add(
            "polyline",
            points=path,
            fill="none",
            stroke=colour,
            stroke_width=1.6,
            stroke_dasharray="5 4" if dashed else None,
        )
        if head:
            (x0, y0), (x, y) = points[-2:]
            length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
            ux, uy = (x - x0) / length, (y - y0) / length
            corners = ((x, y), (x - 9 * ux - 4 * uy, y - 9 * uy + 4 * ux), (x - 9 * ux + 4 * uy, y - 9 * uy - 4 * ux))
            self.add("polygon", points=" ".join(f"{_number(a)},{_number(b)}" for a, b in corners), fill=colour)

    def chip(self, x: float, y: float, number: str, words: str = "") -> None:
        """The number of a notebook, white on black, and words behind it; y is the middle."""
        self.box(x, y - 10, 28, 20, number, INK, edge=None, size=13, colour=CARD, weight="bold")
        self.text(x + 34, y + 5, words, size=13)

    def svg(self) -> str:
        card = f'<rect width="{WIDTH}" height="{self.height}" rx="8" fill="{CARD}" stroke="{FAINT}"/>'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}"'
            f' height="{self.height}" role="img" font-family="{FONT}" font-size="14">'
        )
        said = (f"<title>{escape(self.title)}</title>", f"<desc>{escape(self.words)}</desc>")
        return "\n".join([head, *said, card, *self.parts, "</svg>"]) + "\n"


def _number(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def chain(p: Picture, y: int, height: int, steps: Sequence[tuple[int, int, str, str]]) -> None:
    """Boxes in a row, (left, width, words, colour) each, and an arrow from each to the next."""
    for x, width, words, fill in steps:
        p.box(x, y, width, height, words, fill)
    for (x, width, *_), (following, *_) in pairwise(steps):
        p.arrow((x + width, y + height // 2), (following, y + height // 2))


def map_of_the_course() -> Picture:
    p = Picture(
        446,
        "The course along one request",
        """Before the request: a Hugging Face folder is converted and built (notebook 02) into an engine (01), put
        into a model repository (03) and loaded by Triton (04). One request: text becomes ids, waits for its batch
        (04), the model takes a step, a token is chosen (06 to 09), text streams back (05). 10 makes a step bring
        several tokens, 11 measures the waits, 12 does without an engine, 13 to 15 build a search for pictures, 16 a
        model that sees.""",
    )
    p.text(16, 60, "before the request", size=13, colour=QUIET)
    steps = (
        (16, 116, "Hugging Face\nfolder", CARD),
        (190, 104, "checkpoint", CARD),
        (352, 104, "engine", tint(COMPUTE)),
        (514, 110, "model\nrepository", CARD),
        (682, 102, "Triton", CARD),
    )
    chain(p, 72, 48, steps)
    for x, number, words in (
        (124, "02", "convert"),
        (290, "02", "build"),
        (404, "01", "open it"),
        (514, "03", "write it"),
        (682, "04", "start it"),
    ):
        p.chip(x, 138, number, words)
    p.text(16, 184, "one request", size=13, colour=QUIET)
    steps = (
        (16, 96, "your text", CARD),
        (140, 96, "text to ids", tint(READ)),
        (264, 112, "queue, batch,\nKV cache", CARD),
        (404, 116, "one step of\nthe model", tint(COMPUTE)),
        (548, 108, "choose\na token", tint(WAIT, 0.4)),
        (684, 100, "ids to text", tint(WRITE)),
    )
    chain(p, 222, 50, steps)
    p.arrow((600, 222), (600, 200), (462, 200), (462, 222))
    p.chip(404, 182, "10", "several tokens a step")
    p.text(612, 205, "the next token", size=13, colour=QUIET)
    p.chip(264, 290, "04", "who waits, how long")
    for x, y, number, words in (
        (516, 290, "06", "temperature"),
        (644, 290, "07", "sampling"),
        (516, 314, "08", "log probs"),
        (644, 314, "09", "beam search"),
    ):
        p.chip(x, y, number, words)
    p.box(16, 320, 96, 50, "words on\nyour screen")
    p.arrow((776, 272), (776, 345), (112, 345))
    p.box(300, 333, 210, 24, "", CARD, edge=None)
    p.chip(306, 345, "05", "streamed over gRPC")
    p.arrow((64, 272), (64, 320), dashed=True)
    p.chip(74, 296, "11", "measured")
    p.text(16, 402, "around it", size=13, colour=QUIET)
    p.chip(16, 424, "12", "the LLM API: no engine")
    p.chip(214, 424, "13", "pictures as vectors")
    p.chip(394, 424, "14", "an ensemble")
    p.chip(526, 424, "15", "search, answer")
    p.chip(676, 424, "16", "a VLM")
    return p


def life_of_an_engine() -> Picture:
    p = Picture(
        292,
        "From an ONNX file to an answer: who makes what",
        """Build: OnnxParser fills a network from the ONNX file; Builder makes a plan, a file, of network and config.
        The config holds profiles, targets and flags. Run: Runtime makes an engine of the plan; the engine gives
        execution contexts; a context gets the addresses of tensors and a stream, and runs.""",
    )
    p.box(16, 48, 436, 180, "", tint(READ, 0.12), edge=READ, dashed=True)
    p.text(28, 70, "build (TensorRT-RTX: no GPU)", colour=QUIET)
    p.box(536, 48, 248, 180, "", tint(WRITE, 0.12), edge=WRITE, dashed=True)
    p.text(548, 70, "run (on a GPU)", colour=QUIET)
    steps = ((30, 76, "ONNX file", CARD), (190, 88, "network", CARD), (370, 70, "plan", tint(COMPUTE, 0.4)))
    chain(p, 100, 42, [*steps, (548, 88, "engine", tint(COMPUTE, 0.4)), (692, 80, "context", CARD)])
    for x, words in ((148, "OnnxParser"), (324, "Builder"), (494, "Runtime")):
        p.text(x, 92, words, size=13, anchor="middle", weight="bold")
    p.box(190, 172, 88, 42, "config", tint(WAIT, 0.4))
    p.arrow((278, 193), (324, 193), (324, 124))
    p.arrow((732, 176), (732, 142))
    p.text(732, 194, "addresses,\na stream", size=13, anchor="middle")
    p.text(
        16,
        252,
        "A plan is a file; an engine is that file, loaded. One engine may have several contexts.\n"
        "The config holds profiles (sizes), targets (GPUs) and flags.",
        size=13,
        colour=QUIET,
    )
    return p


def lay(p: Picture, y: int, strip: Sequence[tuple[int, str, str, str]]) -> None:
    """The parts of a file, (width, name, what it holds, colour) each, end to end."""
    x = 16
    for width, name, held, fill in strip:
        p.box(x, y, width, 34, name, fill, round=0)
        p.text(x, y + 51, held, size=13, colour=QUIET)
        x += width


def files_of_weights() -> Picture:
    p = Picture(
        262,
        "A checkpoint is numbers with names; a plan is numbers and a program",
        """Two files as strips of bytes. safetensors: eight bytes with the length of the header, the header in JSON
        with names, types, shapes and places, then the tensors. A TensorRT-RTX plan: a header with version and kinds
        of GPU, a table of sections, the section ENGN with the layers and the source of kernels, the section WGHT
        with the weights.""",
    )
    p.text(16, 62, "checkpoint (safetensors)", weight="bold")
    strip = (
        (84, "8 bytes", "length of\nthe header", tint(WAIT, 0.4)),
        (184, "header, JSON", "names, types, shapes,\nplace of each tensor", tint(READ)),
        (500, "tensors", "the numbers", FAINT),
    )
    lay(p, 74, strip)
    p.text(16, 180, "plan (TensorRT-RTX)", weight="bold")
    strip = (
        (110, "header", "version, GPUs", tint(WAIT, 0.4)),
        (158, "table of sections", "name, place, length", tint(READ)),
        (220, "ENGN", "layers, source of kernels", tint(COMPUTE, 0.4)),
        (280, "WGHT", "the numbers", FAINT),
    )
    lay(p, 192, strip)
    return p


def launches() -> Picture:
    p = Picture(
        330,
        "A CUDA graph: one launch for all kernels of a pass",
        """Two timelines, each with a row for the CPU and one for the GPU. One by one: each kernel waits for its own
        launch by the CPU, and the GPU is idle in between. As a graph: one launch, then all kernels follow each
        other.""",
    )
    for top, name in ((58, "launched one by one"), (192, "launched as a graph")):
        p.text(16, top, name, weight="bold")
        for row, who in ((top + 32, "CPU"), (top + 72, "GPU")):
            p.text(16, row + 5, who)
            p.box(62, row - 14, 722, 28, "", FAINT if who == "GPU" else CARD, edge=None, round=0)
            p.arrow((62, row + 14), (784, row + 14), colour=QUIET, head=False)
    for number in range(6):
        x = 66 + 112 * number
        p.box(x, 78, 104, 24, "launch", tint(LANES["embedded"], 0.3), edge=LANES["embedded"], size=13)
        p.box(x + 104, 118, 36, 24, f"k{number + 1}", tint(COMPUTE, 0.5), edge=COMPUTE, size=13)
        p.arrow((x + 104, 102), (x + 104, 118), colour=QUIET)
        if number < 5:
            p.text(x + 178, 135, "idle", size=13, anchor="middle", colour=QUIET)
    p.box(66, 212, 104, 24, "launch", tint(LANES["embedded"], 0.3), edge=LANES["embedded"], size=13)
    p.arrow((170, 236), (170, 252), colour=QUIET)
    for number in range(6):
        p.box(170 + 36 * number, 252, 36, 24, f"k{number + 1}", tint(COMPUTE, 0.5), edge=COMPUTE, size=13)
    p.text(400, 269, "free for the next pass", size=13, colour=QUIET)
    p.text(184, 229, "free for other work", size=13, colour=QUIET)
    p.text(16, 314, "time runs to the right; k1 to k6 are kernels", size=13, colour=QUIET)
    return p


def folder(p: Picture, x: int, name: str, files: Sequence[str], fill: str) -> None:
    """A folder with its files below each other."""
    p.text(x, 66, name, weight="bold")
    p.box(x, 76, 172, 24 + 30 * len(files), "", tint(fill, 0.15), edge=fill)
    for row, file in enumerate(files):
        p.box(x + 10, 88 + 30 * row, 152, 24, file, CARD, size=13, round=2)


def two_commands() -> Picture:
    p = Picture(
        236,
        "Two commands, three folders",
        """A Hugging Face folder with config.json, model.safetensors and tokenizer.json. convert writes a checkpoint:
        config.json and one rankN.safetensors for each GPU. build writes an engine: config.json and one rankN.engine
        for each GPU. convert decides names, precision and the cut; build decides the limits.""",
    )
    folder(p, 16, "Hugging Face folder", ("config.json", "model.safetensors", "tokenizer.json"), QUIET)
    folder(p, 314, "checkpoint", ("config.json", "rank0.safetensors", "rank1.safetensors"), READ)
    folder(p, 612, "engine", ("config.json", "rank0.engine", "rank1.engine"), COMPUTE)
    for x, name, decides in (
        (188, "convert", "names, precision,\nthe cut: --dtype,\n--tp_size"),
        (486, "build", "limits:\n--max_batch_size,\n--max_seq_len"),
    ):
        p.arrow((x, 133), (x + 126, 133))
        p.text(x + 63, 124, name, anchor="middle", weight="bold")
        p.text(x + 63, 152, decides, size=13, anchor="middle", colour=QUIET)
    p.text(16, 222, "one rank a GPU; the tokenizer goes to the server as it is", size=13, colour=QUIET)
    return p


def shared_heads() -> Picture:
    p = Picture(
        222,
        "Who shares a key head and a value head",
        """Three models. Multi-head, GPT-2: 8 query heads, each with its own key head and value head. Grouped-query,
        SmolLM2: 9 query heads, 3 share one key head and value head. Multi-query, Gemma: all 8 query heads share a
        single one. The cache keeps keys and values only, so fewer of them mean a smaller cache.""",
    )
    for left, name, queries, kept in (
        (16, "multi-head (GPT-2)", 8, 8),
        (284, "grouped-query (SmolLM2)", 9, 3),
        (560, "multi-query (Gemma)", 8, 1),
    ):
        p.text(left, 62, name, weight="bold")
        step = 224 / queries
        for head in range(queries):
            x = left + step * head
            p.box(x, 76, 22, 28, "q", tint(READ, 0.6), edge=INK, size=13, round=2)
            group = queries // kept
            middle = left + step * (head // group * group + (group - 1) / 2) + 11
            p.arrow((x + 11, 104), (middle, 132), colour=QUIET, head=False)
        for head in range(kept):
            x = left + step * (head * queries // kept + (queries // kept - 1) / 2) - (0 if kept == 8 else 4)
            p.box(x, 132, 22 if kept == 8 else 30, 28, "kv", tint(COMPUTE, 0.5), edge=INK, size=13, round=2)
        p.text(left, 184, f"cache: {kept} key{'s' * (kept > 1)}, {kept} value{'s' * (kept > 1)}", size=13)
    p.text(16, 208, "per token and layer; queries are used once and forgotten", size=13, colour=QUIET)
    return p


def matrix(p: Picture, x: float, y: float, width: float, height: float, part: int, rows: bool) -> None:
    """A weight in three parts, one of them in colour."""
    p.box(x, y, width, height, "", FAINT, round=0)
    step = (height if rows else width) / 3
    place = (x, y + part * step, width, step) if rows else (x + part * step, y, step, height)
    p.box(*place, "", RANKS[part], edge=INK, round=0)


def split() -> Picture:
    p = Picture(
        436,
        "Tensor parallel: cut by outputs, then by inputs, then add up",
        """Three ranks. Each has the whole x and a third of the rows of fc and gate: column parallel, it makes a
        third of the hidden numbers. Each has the matching third of the columns of proj: row parallel, it makes a
        share of every number of y. An all-reduce adds the three shares, so that every rank has the whole y.""",
    )
    heads = (
        (84, "x, whole", ""),
        (166, "fc and gate", "column parallel:\ncut by outputs"),
        (326, "hidden", "a third"),
        (420, "proj", "row parallel:\ncut by inputs"),
        (562, "share of y", "every number,\nnot yet right"),
        (700, "y, whole", "on every rank"),
    )
    for x, head, more in heads:
        p.text(x, 66, head, weight="bold")
        p.text(x, 84, more, size=13, colour=QUIET)
    for rank in range(3):
        top = 122 + 104 * rank
        middle = top + 42
        p.text(16, middle + 5, f"rank {rank}")
        p.box(84, middle - 30, 16, 60, "", FAINT, round=0)
        p.arrow((104, middle), (162, middle))
        matrix(p, 166, top, 84, 84, rank, rows=True)
        p.arrow((254, middle), (322, middle))
        p.box(326, top + 28 * rank, 16, 28, "", RANKS[rank], edge=INK, round=0)
        p.box(326, top, 16, 84, "", "none", edge=QUIET, round=0, dashed=True)
        p.arrow((346, middle), (416, middle))
        matrix(p, 420, top + 12, 84, 60, rank, rows=False)
        p.arrow((508, middle), (558, middle))
        p.box(562, middle - 30, 16, 60, "", tint(RANKS[rank], 0.5), edge=INK, round=0)
        p.arrow((582, middle), (606, middle))
        p.arrow((672, middle), (696, middle))
        p.box(700, middle - 30, 16, 60, "", FAINT, edge=INK, round=0)
    p.box(606, 122, 66, 292, "", tint(COMPUTE), edge=COMPUTE)
    p.text(639, 256, "all-\nreduce", anchor="middle", weight="bold")
    p.text(639, 310, "\u03a3", size=22, anchor="middle")
    return p


def heads() -> Picture:
    p = Picture(
        372,
        "qkv over three ranks: every part is cut, and only between heads",
        """SmolLM2's query, key and value weights below each other: nine query heads, three key heads and three value
        heads of 64 rows, 960 rows in all. Rank 0 gets q0, q1, q2, k0 and v0, 320 rows; rank 1 gets q3 to q5, k1
        and v1; rank 2 gets q6 to q8, k2 and v2.""",
    )
    names = [*((f"q{n}", n // 3) for n in range(9)), *((f"{kind}{n}", n) for kind in "kv" for n in range(3))]
    p.text(150, 62, "qkv, 960 rows", weight="bold", anchor="middle")
    for number, (name, rank) in enumerate(names):
        p.box(110, 72 + 19 * number, 80, 19, name, tint(RANKS[rank], 0.7), edge=INK, round=0, size=13)
    for y, count, words in ((72, 9, "q: 9 heads,\n576 rows"), (243, 3, "k: 3 heads"), (300, 3, "v: 3 heads")):
        p.arrow(
            (102, y + 2), (98, y + 2), (98, y + 19 * count - 2), (102, y + 19 * count - 2), head=False, colour=QUIET
        )
        p.text(92, y + 9.5 * count + 5 - 9 * words.count("\n"), words, size=13, anchor="end")
    for rank in range(3):
        x = 330 + 156 * rank
        p.text(x + 56, 62, f"rank {rank}, 320 rows", weight="bold", anchor="middle")
        for place, name in enumerate([*(f"q{n}" for n in range(3 * rank, 3 * rank + 3)), f"k{rank}", f"v{rank}"]):
            p.box(x, 72 + 30 * place, 80, 24, name, tint(RANKS[rank], 0.7), edge=INK, size=13)
            if place < 3:
                y = 84 + 30 * place
                p.arrow((x + 80, y), (x + 98, y), (x + 98, 174), colour=QUIET, head=False)
        p.arrow((x + 98, 174), (x + 82, 174), colour=QUIET)
    p.arrow((204, 142), (314, 142))
    p.text(259, 132, "cut by heads", size=13, anchor="middle")
    p.text(
        330,
        258,
        "Three query heads read one key head and its value head\n(grouped-query attention), so they stay on one rank.",
        colour=QUIET,
    )
    p.text(330, 312, "The first 320 rows of qkv would be q0 to q4: no key,\nno value, and no attention.", colour=QUIET)
    return p


def tree() -> Picture:
    p = Picture(
        258,
        "A model repository is a folder of folders",
        """by_hand, the repository, holds shout, a model, and may hold more models. shout holds config.pbtxt, which says
        what goes in and out, and 1, a version. 1 holds model.py, the code.""",
    )
    rows = (
        (0, "by_hand/", "the repository: --model-repository", FAINT),
        (1, "shout/", "a model: its configuration and its versions", tint(GATHER, 0.6)),
        (2, "config.pbtxt", "what goes in and out", CARD),
        (2, "1/", "a version", tint(READ, 0.4)),
        (3, "model.py", "the code, for the Python backend", CARD),
    )
    for row, (depth, name, words, fill) in enumerate(rows):
        x, y = 16 + 56 * depth, 48 + 40 * row
        p.box(x, y, 132, 30, name, fill, dashed=False)
        p.text(376, y + 20, words, size=13, colour=QUIET)
        if depth:
            parent = {1: 0, 2: 1, 3: 3}[depth]
            p.arrow((x - 32, 48 + 40 * parent + 30), (x - 32, y + 15), (x, y + 15), colour=QUIET, head=False)
    return p


def names_of_one_prompt() -> Picture:
    p = Picture(
        290,
        "One prompt, one answer, and their names on the way",
        """The client's text_input is preprocessing's QUERY. Its INPUT_ID is the ensemble's _INPUT_ID and tensorrt_llm's
        input_ids. Its output_ids are _TOKENS_BATCH, postprocessing's TOKENS_BATCH. Its OUTPUT is text_output, which the
        client gets.""",
    )
    for x, words in ((140, "who makes it"), (400, "name in the ensemble"), (660, "who takes it")):
        p.text(x, 58, words, size=13, anchor="middle", colour=QUIET)
    work = {"preprocessing": READ, "tensorrt_llm": COMPUTE, "postprocessing": WRITE, "client": QUIET}
    rows = (
        ("client", "", "text_input", "preprocessing", "QUERY"),
        ("preprocessing", "INPUT_ID", "_INPUT_ID", "tensorrt_llm", "input_ids"),
        ("tensorrt_llm", "output_ids", "_TOKENS_BATCH", "postprocessing", "TOKENS_BATCH"),
        ("postprocessing", "OUTPUT", "text_output", "client", ""),
    )
    for row, (maker, out, name, taker, into) in enumerate(rows):
        y = 70 + 54 * row
        for x, model, inner in ((16, maker, out), (536, taker, into)):
            p.box(x, y, 248, 40, "", tint(work[model], 0.3), edge=work[model])
            p.text(x + 12, y + 25, model, size=13)
            p.text(x + 236, y + 25, inner, size=13, anchor="end", weight="bold")
        p.box(324, y + 4, 152, 32, name, tint(GATHER, 0.6), edge=None, size=13, weight="bold")
        p.arrow((264, y + 20), (324, y + 20))
        p.arrow((476, y + 20), (536, y + 20))
    return p


def shapes() -> Picture:
    p = Picture(
        250,
        "What dims says, what a client sends, what the model sees",
        """dims 1, three rows: the client sends 3, 1 and the model sees 3, 1. dims 1 with reshape to nothing: the client
        sends 3, 1, the model sees 3. dims -1 with allow_ragged_batch: two clients send 1, 5 and 1, 3, and the model
        sees both in one batch, without padding.""",
    )
    for x, words in ((16, "config.pbtxt"), (330, "on the wire"), (580, "in the model")):
        p.text(x, 58, words, size=13, colour=QUIET)
    rows = ("dims: [1]", "dims: [1]\nreshape { shape: [] }", "dims: [-1]\nallow_ragged_batch: true")
    for row, words in enumerate(rows):
        y = 70 + 60 * row
        p.box(16, y, 220, 46, words, FAINT if row == 0 else tint(COMPUTE, 0.15), edge=QUIET, size=13)
        p.arrow((236, y + 23), (320, y + 23))
        p.arrow((486, y + 23), (570, y + 23))
    for y, x, words in ((70, 330, "[3, 1]"), (70, 580, "[3, 1]"), (130, 330, "[3, 1]"), (130, 580, "[3]")):
        for line in range(3):
            p.box(x, y + 1 + 15 * line, 30, 13, fill=tint(READ, 0.6), edge=READ, round=0)
        p.text(x + 44, y + 28, words, weight="bold")
        p.text(x + 96, y + 28, "3 rows", size=13, colour=QUIET)
    for x in (330, 580):
        for line, length in enumerate((5, 3)):
            for cell in range(length):
                p.box(x + 16 * cell, 194 + 22 * line, 15, 16, fill=tint(WRITE, 0.6), edge=WRITE, round=0)
            if x == 330:
                p.text(x + 90, 207 + 22 * line, f"[1, {length}]", weight="bold")
    p.text(676, 218, "one batch", size=13, colour=QUIET)
    return p


def holes() -> Picture:
    p = Picture(
        244,
        "How you find out that a placeholder was left",
        """Structural placeholders: the parser stops and says Expected integer, or integer or identifier, got a dollar
        sign. Quoted and required: the file parses, and the model's code fails in its own words. Quoted and optional:
        everything works, the default applies, and there is no message.""",
    )
    for x, words in ((236, "parse config.pbtxt"), (440, "start the model"), (644, "serve")):
        p.box(x, 46, 140, 34, words, tint(READ, 0.3), edge=READ, size=13)
        p.add("line", x1=x + 70, y1=80, x2=x + 70, y2=228, stroke=FAINT, stroke_width=2)
    rows = (
        ("structural", "max_batch_size: ${n}", 306, "stops: Expected integer, got: $  (a number)\n"
         "Expected integer or identifier, got: $  (an enum)"),
        ("quoted, required", 'string_value: "${dir}"', 510, "stops, in the code's own words"),
        ("quoted, optional", 'string_value: "${flag}"', 714, ""),
    )  # fmt: skip
    bad = LANES["trtllm"]
    for row, (kind, example, end, said) in enumerate(rows):
        y = 112 + 50 * row
        p.text(16, y - 2, kind, size=13, weight="bold")
        p.text(16, y + 16, example, size=13, colour=QUIET)
        p.arrow((176, y), (end - 8, y), colour=bad if said else INK)
        if said:
            p.text(end, y + 6, "✕", size=18, anchor="middle", colour=bad, weight="bold")
            p.text(end + 16, y - 4 if "\n" in said else y + 5, said, size=13, colour=bad)
    p.text(706, 234, "no message: the default applies", size=13, anchor="end", colour=QUIET)
    return p


def path() -> Picture:
    p = Picture(
        232,
        "Where a request is between the client and its response",
        """A client sends over HTTP or gRPC to Triton's front end, which puts the request into the queue of its
        model. The scheduler makes a batch of what waits and hands it to a free instance. The response
        goes back to the client.""",
    )
    p.box(16, 76, 80, 54, "client")
    p.box(136, 48, 648, 168, "", CARD, dashed=True)
    p.text(148, 68, "Triton", colour=QUIET)
    p.box(152, 80, 100, 46, "front end", tint(READ))
    for place in range(4):
        p.box(320 + 24 * place, 86, 20, 34, "", tint(WAIT, 0.4), edge=WAIT, round=2)
    p.box(312, 78, 110, 50, "", "none", dashed=True)
    p.box(474, 80, 96, 46, "scheduler", tint(CALL, 0.4))
    p.box(640, 64, 128, 40, "instance", tint(COMPUTE))
    p.box(640, 112, 128, 40, "instance", tint(COMPUTE))
    p.arrow((96, 98), (152, 98))
    for points in (
        ((252, 103), (312, 103)),
        ((422, 103), (474, 103)),
        ((570, 98), (640, 86)),
        ((570, 108), (640, 128)),
    ):
        p.arrow(*points)
    for x, words in ((202, "threads"), (367, "the model's queue,\none per model"), (522, "makes a batch")):
        p.text(x, 146, words, size=13, anchor="middle", colour=QUIET)
    p.text(682, 170, "a process each,\nif in Python", size=13, anchor="middle", colour=QUIET)
    p.arrow((752, 152), (752, 202), (56, 202), (56, 130))
    p.text(62, 196, "response", size=13)
    return p


def blocks() -> Picture:
    p = Picture(
        448,
        "The KV cache in blocks: filled, shared, taken back",
        """Three views of a cache of eight blocks of four tokens. Filled: request A with ten tokens owns three
        blocks, the last one half empty, and they need not be neighbours. Shared: B begins like A, so its list
        names the two full blocks of A and one of its own. Taken back: no block is free when A needs one more; the
        youngest request, C, is preempted, its blocks go to A, and C is read again later.""",
    )
    colours = {"A": tint(READ, 0.7), "B": tint(WRITE, 0.6), "C": tint(CALL, 0.7), "AB": tint(GATHER, 0.8), "": CARD}
    views = (
        (
            "filled",
            ("A1", "", "", "A2", "", "A3", "", ""),
            {"A": "0 3 5"},
            "A has 10 tokens: 3 blocks of 4.\nOnly the last one has empty\nplaces, and any free block will do.",
        ),
        (
            "shared",
            ("AB1", "B3", "", "AB2", "", "A3", "", ""),
            {"A": "0 3 5", "B": "0 3 1"},
            "B begins with the same 8 tokens:\nits list names the same 2 blocks.\nThey are computed once.",
        ),
        (
            "taken back",
            ("A1", "B1", "B2", "A2", "B3", "A3", "A4", ""),
            {"A": "0 3 5", "B": "1 2 4", "C": "6 7"},
            "A needs a fourth block and none is\nfree: the youngest, C, gives up 6\nand 7, waits, and is read again.",
        ),
    )
    for number, (name, cells, lists, words) in enumerate(views):
        left = 16 + 262 * number
        p.text(left, 62, name, weight="bold")
        for place, cell in enumerate(cells):
            x, y = left + 60 * (place % 4), 74 + 66 * (place // 4)
            owner = cell.rstrip("1234")
            p.box(x, y, 54, 36, "", colours[owner], edge=INK if owner else QUIET, dashed=not owner, round=2)
            for token in range(4):
                full = (
                    owner
                    and not (cell == "A3" and token > 1 and name != "taken back")
                    and not (cell == "B3" and token > 2)
                    and not (cell == "A4" and token > 0)
                )
                p.box(
                    x + 5 + 11.5 * token,
                    y + 24,
                    9,
                    7,
                    "",
                    INK if full else CARD,
                    edge=QUIET if owner else None,
                    round=0,
                )
            p.text(x + 27, y + 18, ", ".join(owner), size=13, anchor="middle")
            p.text(x + 27, y + 51, f"{place}", size=13, anchor="middle", colour=QUIET)
        p.text(left, 232, "lists of blocks", size=13, colour=QUIET)
        for row, (owner, numbers) in enumerate(lists.items()):
            y = 242 + 32 * row
            crossed = name == "taken back" and owner == "C"
            p.text(left, y + 18, owner, weight="bold")
            for place, block in enumerate(numbers.split()):
                p.box(
                    left + 24 + 34 * place,
                    y,
                    30,
                    24,
                    block,
                    CARD if crossed else colours[owner],
                    size=13,
                    dashed=crossed,
                )
            if crossed:
                p.text(left + 98, y + 17, "preempted", size=13, colour=COMPUTE, weight="bold")
            if name == "taken back" and owner == "A":
                p.box(left + 24 + 34 * 3, y, 30, 24, "6", colours["A"], size=13, edge=INK)
                p.text(left + 162, y + 17, "from C", size=13, colour=QUIET)
        p.text(left, 362, words, size=13)
    p.text(
        16, 430, "black: the key and value of a token; white: an empty place; 0 to 7: the blocks", size=13, colour=QUIET
    )
    return p


def four_ways() -> Picture:
    p = Picture(
        392,
        "One request, four ways",
        """Between a client and Triton. a, POST infer, tensors as JSON: one request, one response. b, POST generate, one
        flat JSON object: one request, one response. c, POST generate_stream, the same, answered by server-sent events:
        one request, three responses. d, gRPC ModelStreamInfer, binary messages: two requests, whose responses come
        mixed on one stream.""",
    )
    for x, name in ((330, "client"), (560, "Triton")):
        p.text(x, 58, name, anchor="middle", weight="bold")
        p.arrow((x, 66), (x, 380), colour=QUIET, head=False)
    rows = (
        (70, "a", "POST /v2/models/M/infer", "tensors as JSON", ">1<1"),
        (132, "b", "POST /v2/models/M/generate", "one flat JSON object", ">1<1"),
        (194, "c", "POST …/M/generate_stream", "the same object; answers\nare server-sent events", ">1<1<1<1"),
        (286, "d", "gRPC ModelStreamInfer", "binary messages, many\nrequests on one stream", ">1>2<1<2<1<2"),
    )
    for top, way, where, what, messages in rows:
        p.text(16, top + 22, way, size=17, weight="bold")
        p.text(40, top + 22, where)
        p.text(580, top + 22, what)
        for place, (direction, number) in enumerate(zip(messages[::2], messages[1::2], strict=True)):
            y, colour = top + 14 + 14 * place, WAIT if number == "2" else LANES["embedded"]
            p.arrow(*(((334, y), (556, y)) if direction == ">" else ((556, y), (334, y))), colour=colour)
    return p


def threads_of_a_client() -> Picture:
    p = Picture(
        292,
        "The callback puts, your loop takes",
        """Your thread calls start_stream with the callback, then async_stream_infer, then takes from a queue, and at
        the end calls stop_stream. A thread of tritonclient reads the responses that Triton sends and calls
        callback(result, error), which puts them into the queue.""",
    )
    steps = ("1  start_stream(callback)", "2  async_stream_infer(…)", "3  arrived.get()", "4  stop_stream()")
    p.text(121, 60, "your thread", anchor="middle", weight="bold")
    for place, step in enumerate(steps):
        p.box(16, 74 + 54 * place, 210, 36, step, tint(READ, 0.4), edge=READ)
        if place:
            p.arrow((121, 56 + 54 * place), (121, 74 + 54 * place))
    for place in range(4):
        p.box(284 + 24 * place, 188, 20, 30, "", tint(WAIT, 0.4), edge=WAIT, round=2)
    p.box(276, 180, 110, 46, "", "none", dashed=True)
    p.text(331, 248, "queue", size=13, anchor="middle", colour=QUIET)
    p.arrow((276, 203), (226, 203))
    p.text(530, 60, "tritonclient's thread", anchor="middle", weight="bold")
    p.box(440, 182, 180, 42, "callback(result, error)", tint(CALL, 0.4), edge=CALL)
    p.arrow((440, 203), (386, 203))
    p.box(690, 74, 94, 150, "Triton", tint(COMPUTE))
    p.arrow((226, 146), (690, 146), colour=READ)
    p.text(640, 138, "request", size=13, anchor="middle", colour=QUIET)
    p.arrow((690, 203), (620, 203), colour=COMPUTE)
    p.text(655, 246, "responses", size=13, anchor="middle", colour=QUIET)
    return p


def bytes_of_a_character() -> Picture:
    p = Picture(
        300,
        "One character, three tokens: who waits for its last byte?",
        """A fox is one character of four bytes, f0 9f a6 8a, and comes as three tokens: f0 9f, then a6, then 8a. The
        ensemble decodes each token alone and sends three marks for broken text. The BLS model holds the bytes until
        they make a character: it sends empty text twice, and with the third token the fox.""",
    )
    data, bad = ("f0", "9f", "a6", "8a"), LANES["trtllm"]
    rows = ((92, "bytes in each token"), (150, "the ensemble sends"), (208, "the BLS model holds"), (266, "and sends"))
    for y, words in rows:
        p.text(16, y + 5, words)
    p.add("line", x1=16, y1=121, x2=784, y2=121, stroke=FAINT, stroke_width=2)
    p.add("line", x1=16, y1=179, x2=784, y2=179, stroke=FAINT, stroke_width=2)
    for place, (start, end) in enumerate(((0, 2), (2, 3), (3, 4))):
        left = 200 + 200 * place
        p.text(left, 62, f"token {place + 1}", size=13, colour=QUIET)
        for x, y, first in ((left, 92, start), (left, 208, 0)):
            for number, byte in enumerate(data[first:end]):
                fill, edge = (COMPUTE, COMPUTE) if y == 92 else (WRITE, WRITE)
                p.box(x + 44 * number, y - 17, 40, 34, byte, tint(fill, 0.3), edge=edge)
        p.text(left, 159, "�", size=24, colour=bad)
        if place < 2:
            p.text(left, 271, "empty text", colour=QUIET)
        else:
            _fox(p, left, 250)
    return p


def _fox(p: Picture, x: int, y: int) -> None:
    """A small head of a fox, since not every reader has a font with one; x and y are its upper left corner."""
    for corners, colour in (
        (((2, 0), (14, 8), (4, 18)), STRATEGIES["temperature"]),
        (((34, 0), (22, 8), (32, 18)), STRATEGIES["temperature"]),
        (((3, 8), (33, 8), (36, 17), (18, 34), (0, 17)), STRATEGIES["temperature"]),
        (((0, 17), (13, 20), (18, 34)), CARD),
        (((36, 17), (23, 20), (18, 34)), CARD),
        (((15, 30), (21, 30), (18, 34)), INK),
    ):
        p.add("polygon", points=" ".join(f"{x + a},{y + b}" for a, b in corners), fill=colour, stroke=INK)
    for eye in (12, 24):
        p.add("circle", cx=x + eye, cy=y + 16, r=2, fill=INK)


def queues() -> Picture:
    p = Picture(
        250,
        "An LLM has two queues, and Triton's clock sees the first",
        """A request goes from Triton's queue, which is empty, to the instance of tensorrt_llm, and from there to the
        executor's queue, where requests wait until one of the slots is free. Triton's clock ends when the instance
        has handed the request on; the request's own times, arrival, first_scheduled, first_token and last_token,
        cover the rest.""",
    )
    p.box(16, 48, 318, 118, "", CARD, dashed=True)
    p.text(28, 68, "Triton", colour=QUIET)
    p.box(374, 48, 410, 118, "", tint(COMPUTE, 0.12), edge=COMPUTE, dashed=True)
    p.text(386, 68, "executor", colour=QUIET)
    for left, count, full in ((40, 4, 0), (398, 6, 6)):
        for place in range(count):
            fill = tint(WAIT, 0.4) if place < full else CARD
            p.box(left + 24 * place, 88, 20, 34, "", fill, edge=WAIT if place < full else QUIET, round=2)
    p.text(86, 150, "queue: empty", size=13, anchor="middle")
    p.text(470, 150, "queue: the wait for a slot", size=13, anchor="middle")
    p.box(206, 82, 112, 46, "execute hands\nit on at once", tint(COMPUTE), size=13)
    for slot in range(4):
        p.box(634, 60 + 25 * slot, 132, 20, f"slot {slot + 1}", tint(COMPUTE, 0.5), edge=COMPUTE, size=13, round=2)
    for start, end in (((144, 105), (206, 105)), ((318, 105), (390, 105)), ((548, 105), (626, 105))):
        p.arrow(start, end)
    for left, right, words, colour in (
        (16, 334, "Triton's statistics: queue, compute", INK),
        (398, 590, "first_scheduled − arrival", COMPUTE),
        (626, 784, "last_token −\nfirst_scheduled", COMPUTE),
    ):
        p.arrow((left, 182), (left, 190), (right, 190), (right, 182), colour=colour, head=False)
        p.text((left + right) / 2, 210, words, size=13, anchor="middle", colour=colour)
    return p


def place_of_temperature() -> Picture:
    p = Picture(
        236,
        "Where the temperature acts, and where nothing asks for it",
        """Logits of the next token come in. Is top_k or top_p set? No: the highest logit is taken, greedy, and the
        temperature is never used. Yes: the logits are divided by T, softmax makes probabilities, top_k and top_p cut,
        and the token is drawn.""",
    )
    p.box(16, 110, 84, 44, "logits", CARD)
    p.arrow((100, 132), (136, 132))
    p.box(136, 100, 148, 64, "top_k or top_p\nset?", tint(CALL, 0.4))
    p.arrow((210, 100), (210, 72), (330, 72))
    p.text(220, 92, "yes", size=13, weight="bold")
    p.arrow((210, 164), (210, 196), (330, 196))
    p.text(220, 184, "no", size=13, weight="bold")
    steps = (
        (330, 92, "divide by T", tint(WAIT, 0.6)),
        (452, 84, "softmax", CARD),
        (566, 92, "cut: top_k,\ntop_p", CARD),
        (688, 92, "draw", CARD),
    )
    chain(p, 50, 44, steps)
    p.box(330, 174, 214, 44, "take the highest logit: greedy", FAINT)
    p.text(558, 201, "temperature: never read", size=13, colour=QUIET)
    return p


def order_of_settings() -> Picture:
    p = Picture(
        236,
        "The order of the settings, on the five tokens",
        """Five tokens: 0.40, 0.30, 0.15, 0.10 and 0.05. Temperature, then penalties change logits; both are off.
        Top-k 3 leaves a, b and c. Dividing by 0.85 makes 0.47, 0.35 and 0.18 of them. Top-p 0.8 leaves a and b, since
        their sum reaches 0.8. From 0.57 and 0.43 a token is drawn.""",
    )
    columns = (
        ("temperature", "off: 1", (0.40, 0.30, 0.15, 0.10, 0.05), WAIT),
        ("penalties", "off", (0.40, 0.30, 0.15, 0.10, 0.05), QUIET),
        ("top-k", "3", (0.40, 0.30, 0.15, 0, 0), STRATEGIES["top_k"]),
        ("renormalise", "/ 0.85", (0.471, 0.353, 0.176, 0, 0), INK),
        ("top-p", "0.8", (0.471, 0.353, 0, 0, 0), STRATEGIES["top_p"]),
        ("draw", "/ 0.824", (0.571, 0.429, 0, 0, 0), CALL),
    )
    before = columns[0][2]
    for place, (name, value, shares, colour) in enumerate(columns):
        x = 16 + 131 * place
        p.box(x, 46, 108, 46, f"{name}\n{value}", tint(colour, 0.3), edge=colour, size=13)
        if place < 5:
            p.arrow((x + 108, 69), (x + 131, 69))
        for row, (token, old, share) in enumerate(zip("abcde", before, shares, strict=True)):
            y = 108 + 24 * row
            p.text(x, y + 14, token, size=13, colour=INK if share else FAINT)
            if share or old:
                fill = tint(colour, 0.6) if share else CARD
                p.box(x + 14, y + 2, 100 * (share or old), 14, fill=fill, edge=colour, dashed=not share, round=0)
            if share:
                p.text(x + 20 + 100 * share, y + 14, f"{share:.2f}", size=13)
        before = shares
    return p


def rows_and_tokens() -> Picture:
    p = Picture(
        262,
        "Row t of the logits scores token t + 1",
        """Five tokens, 0 to 4: The, dog, ran, home, full stop. The model reads them at once and gives five rows of
        logits. Row 0 scores token 1, row 1 token 2, row 2 token 3, row 3 token 4. Token 0 has no row, and row 4 is for
        a token that is not in the text.""",
    )
    words = ("The", "dog", "ran", "home", ".")
    p.text(16, 82, "tokens")
    p.text(16, 208, "logits")
    for place, word in enumerate(words):
        x = 110 + 112 * place
        p.box(x, 60, 84, 34, word, tint(READ, 0.4) if place else CARD, edge=READ if place else QUIET, dashed=not place)
        p.text(x + 42, 52, f"ids[{place}]", size=13, anchor="middle", colour=QUIET)
        p.box(x, 186, 84, 34, f"row {place}", tint(COMPUTE, 0.4 if place < 4 else 0.1), edge=COMPUTE)
        p.arrow((x + 60, 186), (x + 138, 96) if place < 4 else (x + 112, 122), colour=COMPUTE, dashed=place == 4)
        p.arrow((x + 20, 96), (x + 20, 184), colour=FAINT)
    p.text(152, 112, "no score", size=13, anchor="middle", colour=QUIET)
    p.text(676, 112, "not in the text", size=13, anchor="middle", colour=QUIET)
    p.text(110, 246, "grey: row t has read ids[0] to ids[t]; colour: what it scores", size=13, colour=QUIET)
    return p


def rows_of_beams() -> Picture:
    p = Picture(
        226,
        "Each cell holds a token and the row that it continues",
        """Three rows over three steps. Step 0: a, the, one. Step 1: fox continues row 1, cat row 0, dog row 1. Step 2:
        ran continues row 2, sat row 0, is row 1. Arrows lead from each cell to the one that it continues. From sat
        they lead to fox and to the; nothing leads to one.""",
    )
    steps = ((("a", None), ("the", None), ("one", None)), (("fox", 1), ("cat", 0), ("dog", 1)))
    steps += ((("ran", 2), ("sat", 0), ("is", 1)),)
    path = {(0, 1), (1, 0), (2, 1)}
    for row in range(3):
        p.text(40, 107 + 48 * row, f"row {row}", size=13, colour=QUIET)
    for step, cells in enumerate(steps):
        x = 130 + 250 * step
        p.text(x + 60, 70, f"step {step}", size=13, anchor="middle", colour=QUIET)
        for row, (token, parent) in enumerate(cells):
            y, chosen = 84 + 48 * row, (step, row) in path
            words = token if parent is None else f"{token}, from row {parent}"
            p.box(x, y, 120, 36, words, tint(WAIT, 0.5) if chosen else CARD, edge=INK if chosen else QUIET)
            if parent is not None:
                p.arrow((x, y + 18), (x - 130, 102 + 48 * parent), colour=INK if chosen else QUIET)
    return p


def one_round() -> Picture:
    p = Picture(
        384,
        "One round: three guesses, one step of the target, three tokens",
        """Text so far: The fox. The draft guesses ran, into, a, one after the other. The target reads them in one
        step and chooses ran, into, the, dark. ran and into agree and are kept; the replaces a; dark is thrown
        away, because the target chose it after a. The text is now The fox ran into the.""",
    )
    columns = [240 + 92 * place for place in range(6)]
    words = ["The", "fox", "ran", "into", "a"]

    def token(place: int, y: int, word: str, colour: str, thrown: bool = False) -> None:
        p.box(
            columns[place],
            y,
            72,
            32,
            word,
            CARD if thrown else tint(colour, 0.4),
            edge=QUIET if thrown else colour,
            dashed=thrown,
            colour=QUIET if thrown else INK,
        )

    rows = (
        (52, "1  draft", "a small model, step by step"),
        (146, "2  verify", "the target, one step\nfor all places"),
        (282, "3  accept", "what agrees, and the\ntarget's next token"),
    )
    for y, name, more in rows:
        p.text(16, y + 16, name, size=15, weight="bold")
        p.text(16, y + 36, more, size=13, colour=QUIET)
    for place, word in enumerate(words):
        token(place, 52, word, QUIET if place < 2 else READ)
    for place in (1, 2, 3):
        p.arrow((columns[place] + 72, 68), (columns[place + 1], 68), colour=READ)
    for place in range(1, 5):  # what stands at a place decides the token behind it
        p.arrow((columns[place] + 36, 84), (columns[place] + 36, 138), colour=COMPUTE)
        p.arrow((columns[place] + 50, 166), (columns[place + 1] + 36, 196), colour=COMPUTE)
    p.box(columns[1], 138, columns[4] + 72 - columns[1], 28, "target: one step", tint(COMPUTE, 0.4), edge=COMPUTE)
    for place, word in ((2, "ran"), (3, "into"), (4, "the"), (5, "dark")):
        token(place, 196, word, COMPUTE, thrown=word == "dark")
    for place, mark, colour in ((2, "= ran", WRITE), (3, "= into", WRITE), (4, "not: a", COMPUTE)):
        p.text(columns[place] + 36, 250, mark, size=13, anchor="middle", colour=INK)
        p.arrow((columns[place] + 36, 256), (columns[place] + 36, 282), colour=colour)
    p.text(columns[5] + 36, 250, "chosen\nafter a", size=13, anchor="middle", colour=QUIET)
    for place, word in ((0, "The"), (1, "fox"), (2, "ran"), (3, "into"), (4, "the")):
        token(place, 282, word, QUIET if place < 2 else WRITE)
    p.arrow((columns[2], 328), (columns[4] + 72, 328), head=False, colour=WRITE)
    p.text(columns[3] + 36, 350, "three tokens for one step of the target", size=13, anchor="middle")
    return p


def two_loops() -> Picture:
    p = Picture(
        398,
        "The same stall in a closed and in an open loop",
        """Two timelines of a server with two places that stalls from second 3 to second 6. Closed loop: two users,
        each sends when the answer before is there; only the two requests under way are late, and nothing is sent
        meanwhile. Open loop: requests are due at a rate; those due in the stall wait, and so do those behind them
        until the queue is empty.""",
    )
    second, left, stall = 52, 150, (3.0, 6.0)

    def served(start: float) -> float:
        """When a request that is taken up at `start`, and takes a second, is done."""
        start = stall[1] if stall[0] <= start < stall[1] else start
        return start + 1 + (stall[1] - stall[0]) * (start < stall[0] < start + 1)

    p.box(left + second * stall[0], 46, second * (stall[1] - stall[0]), 308, "", FAINT, edge=None, round=0)
    p.text(left + second * 4.5, 62, "the server stalls", size=13, anchor="middle")
    p.text(16, 84, "closed loop", weight="bold")
    for user in range(2):
        p.text(16, 108 + 28 * user, f"user {user + 1}", size=13)
        start = 0.5 * user
        while start < 11:
            end = served(start)
            place = (left + second * start, 94 + 28 * user, second * (end - start), 20)
            p.box(*place, "", tint(COMPUTE, 0.5), edge=COMPUTE)
            start = end
    p.text(16, 180, "open loop", weight="bold")
    p.text(16, 200, "due at a rate;\npale: it waits", size=13)
    free = [0.0, 0.0]
    for row, due in enumerate((0.2, 1.0, 1.7, 2.6, 3.4, 4.0, 4.9, 5.5, 6.4, 7.3, 8.2, 9.3)):
        start = max(due, min(free))
        start = stall[1] if stall[0] <= start < stall[1] else start
        free[free.index(min(free))] = end = served(start)
        y = 168 + 15 * row
        p.box(left + second * due, y, second * (start - due), 12, "", tint(WAIT, 0.4), edge=WAIT, round=0)
        p.box(left + second * start, y, second * (end - start), 12, "", tint(COMPUTE, 0.5), edge=COMPUTE, round=0)
    p.arrow((left, 362), (784, 362), colour=QUIET)
    p.text(784, 384, "time", size=13, anchor="end", colour=QUIET)
    return p


def two_apis() -> Picture:
    p = Picture(
        314,
        "Two ways from a Hugging Face folder to a server",
        """With an engine: convert_checkpoint.py makes a checkpoint, trtllm-build an engine, five configurations are
        filled in, and Triton serves five models. With the LLM API: LLM reads the folder, and your program,
        trtllm-serve or Triton's llmapi model uses it.""",
    )
    left, right = LANES["trtllm"], LANES["embedded"]
    p.text(104, 66, "with an engine", weight="bold", anchor="middle")
    p.text(604, 66, "with the LLM API", weight="bold", anchor="middle")
    p.box(290, 50, 180, 36, "Hugging Face folder", FAINT)
    p.arrow((290, 78), (104, 78), (104, 104))
    p.arrow((470, 78), (604, 78), (604, 104))
    steps = (
        ("convert_checkpoint.py", "checkpoint"),
        ("trtllm-build", "engine"),
        ("fill five config.pbtxt", "repository"),
    )
    for number, (program, made) in enumerate(steps):
        y = 104 + 54 * number
        p.box(16, y, 176, 32, program, tint(left, 0.2), edge=left, size=13)
        p.arrow((192, y + 16), (228, y + 16))
        p.box(228, y, 124, 32, made, CARD, edge=left, dashed=True, size=13)
        p.arrow((290, y + 32), (290, y + 43), (104, y + 43), (104, y + 54))
    p.box(16, 266, 176, 32, "Triton, five models", tint(left, 0.4), edge=left, size=13)
    p.box(514, 104, 180, 32, "LLM(model=\u2026)", tint(right, 0.2), edge=right, size=13)
    for x, words in ((433, "your\nprogram"), (551, "trtllm-serve"), (669, "Triton,\nllmapi model")):
        p.arrow((604, 136), (604, 166), (x + 53, 166), (x + 53, 196))
        p.box(x, 196, 106, 46, words, tint(right, 0.4), edge=right, size=13)
    p.text(604, 262, "no checkpoint, no engine, nothing to fill", size=13, anchor="middle", colour=QUIET)
    return p


def front_end() -> Picture:
    p = Picture(
        250,
        "A front end between OpenAI's names and an engine's",
        """The openai client sends messages, max_completion_tokens, temperature and stop. The front end applies the chat
        template, renames, adds top_p 1 and exclude_input_in_output, and sends text_input, max_tokens, temperature and
        stop_words to Triton's tensorrt_llm_bls. Text comes back; the front end cuts the stop word off and makes a chat
        answer of it.""",
    )
    p.box(16, 60, 104, 150, "openai\nclient", tint(LANES["embedded"], 0.2), edge=LANES["embedded"])
    p.box(300, 60, 170, 150, "", tint(GATHER, 0.4), edge=INK)
    p.text(385, 82, "front end", anchor="middle", weight="bold")
    p.text(314, 112, "1 chat template\n2 new names\n3 other defaults\n4 cut the stop word", size=13)
    p.box(660, 60, 124, 150, "Triton:\ntensorrt_llm_bls", tint(CALL, 0.4), edge=CALL, size=13)
    p.arrow((120, 130), (300, 130))
    p.text(128, 74, "messages\nmax_completion_tokens\nstop", size=13)
    p.arrow((470, 130), (660, 130))
    p.text(478, 74, "text_input\nmax_tokens, stop_words\nexclude_input_…", size=13)
    p.arrow((660, 182), (470, 182), colour=QUIET)
    p.text(565, 174, "text", size=13, anchor="middle", colour=QUIET)
    p.arrow((300, 182), (120, 182), colour=QUIET)
    p.text(210, 174, "choices[0].message", size=13, anchor="middle", colour=QUIET)
    p.text(16, 236, "above: POST /v1/chat/completions, then gRPC; below: the answer, whole or piece by piece", size=13,
           colour=QUIET)  # fmt: skip
    return p


def old_client() -> Picture:
    p = Picture(
        262,
        "Three ways of an old request to llmapi",
        """An old client sends max_tokens 100. Over gRPC, llmapi's declared inputs are compared with it: refused. Over
        HTTP the unknown name is dropped, and LLM generates at most 32 tokens. Over gRPC through old_names, an ensemble
        of one step, it becomes sampling_param_max_tokens 100, and LLM generates at most 100.""",
    )
    p.box(16, 60, 120, 178, "old client:\nmax_tokens\n= 100", FAINT)
    p.box(430, 60, 170, 178, "", tint(LANES["embedded"], 0.2), edge=LANES["embedded"])
    p.text(515, 82, "llmapi declares", size=13, anchor="middle")
    p.text(515, 158, "sampling_param_\nmax_tokens", size=13, anchor="middle", weight="bold")
    red = LANES["trtllm"]
    p.arrow((136, 92), (412, 92), colour=red)
    p.text(148, 85, "gRPC: max_tokens", size=13)
    p.text(416, 99, "✕", size=18, colour=red, anchor="middle", weight="bold")
    p.text(284, 85, "refused: an error", size=13, colour=red)
    p.arrow((136, 134), (430, 134), colour=red, dashed=True)
    p.text(148, 127, "HTTP: max_tokens, dropped", size=13)
    p.arrow((600, 134), (640, 134), colour=red)
    p.text(648, 139, "at most 32 tokens", size=13, colour=red)
    p.arrow((136, 212), (190, 212))
    p.text(142, 204, "gRPC", size=13)
    p.box(190, 184, 116, 54, "old_names,\none step", tint(GATHER, 0.6), edge=INK, size=13)
    p.arrow((306, 212), (430, 212))
    p.text(368, 204, "the new name", size=13, anchor="middle")
    p.arrow((600, 212), (640, 212))
    p.text(648, 217, "at most 100 tokens", size=13, weight="bold")
    return p


def from_encoder_to_engine() -> Picture:
    p = Picture(
        186,
        "From two encoders to an engine: one question at each step",
        """Five steps. Two encoders in PyTorch: do they share a space? A bridge: does a sentence find its picture?
        ONNX files: the same numbers? fp16 and int8: how far does a vector turn, and is an answer lost? An engine: which
        one is refused?""",
    )
    steps = (
        ("two encoders", COMPUTE, "do they share\na space?", "sections 2, 3"),
        ("a bridge", GATHER, "are pictures\nfound?", "section 4"),
        ("ONNX files", READ, "the same\nnumbers?", "section 5"),
        ("fp16 and int8", READ, "do vectors turn?\nis an answer lost?", "section 6"),
        ("an engine", WRITE, "is a bad one\nrefused?", "sections 7, 8"),
    )
    chain(p, 50, 40, [(16 + 160 * n, 128, name, tint(fill, 0.5)) for n, (name, fill, *_) in enumerate(steps)])
    for n, (_, _, asked, where) in enumerate(steps):
        p.text(80 + 160 * n, 116, asked, size=13, anchor="middle")
        p.text(80 + 160 * n, 164, where, size=13, anchor="middle", colour=QUIET)
    return p


def three_cures() -> Picture:
    p = Picture(
        300,
        "No space, a space from training, a space over a bridge",
        """Three columns. Apart: a picture tower gives 1,280 numbers, a text tower 384; they do not compare. Trained
        together, CLIP: both towers end in 512 numbers of one space. Bridged: the picture tower's class probabilities
        weigh the text tower's vectors of the class names, so pictures end in the text tower's 384 numbers;
        mini-CLIP trains the bridge on drawings.""",
    )
    for left, name in ((16, "apart"), (284, "cure 1: trained together"), (552, "cures 2 and 3: a bridge")):
        p.text(left, 60, name, weight="bold")
        p.box(left, 76, 104, 46, "picture\ntower", tint(COMPUTE))
        p.box(left + 128, 76, 104, 46, "text\ntower", tint(CALL, 0.4))
    for x, words in ((16, "1,280\nnumbers"), (144, "384\nnumbers")):
        p.box(x, 190, 104, 50, words, FAINT, dashed=True)
        p.arrow((x + 52, 122), (x + 52, 190))
    p.text(132, 222, "\u2260", size=22, anchor="middle")
    p.box(284, 190, 232, 50, "one space, 512 numbers", tint(GATHER, 0.5))
    for x in (336, 464):
        p.arrow((x, 122), (x, 190))
    p.box(552, 204, 232, 36, "the text tower's 384 numbers", tint(GATHER, 0.5), size=13)
    p.arrow((604, 122), (604, 140))
    p.box(552, 140, 112, 44, "probabilities\nof classes", CARD, size=13)
    p.arrow((732, 122), (732, 204))
    p.arrow((608, 184), (608, 204))
    p.arrow((732, 162), (664, 162), dashed=True)
    p.text(698, 154, "names", size=13, anchor="middle", colour=QUIET)
    for x, words in (
        (16, "nothing to compare"),
        (284, "CLIP: 400 million pairs"),
        (552, "ConSE: no training;\nmini-CLIP: trained on drawings"),
    ):
        p.text(x, 264, words, size=13, colour=QUIET)
    return p


def rows_in_front() -> Picture:
    p = Picture(
        216,
        "dims is one row; Triton puts the number of rows in front",
        """A request with two pictures through two steps. On the arrows stand whole shapes: 2, 1 into
        image_preprocessing, 2, 3, 224, 224 into vision_encoder, 2, 384 out. In the boxes stand the dims of one row:
        3, 224, 224 and 384. Both have max_batch_size 16.""",
    )
    p.box(16, 76, 70, 64, "client")
    for x, name, fill, words in (
        (178, "image_preprocessing", READ, "input  [1]\noutput [3, 224, 224]"),
        (510, "vision_encoder", COMPUTE, "input  [3, 224, 224]\noutput [384]"),
    ):
        p.box(x, 60, 168, 96, "", tint(fill), edge=fill)
        p.text(x + 84, 80, name, size=13, anchor="middle", weight="bold")
        p.text(x + 12, 106, words, size=13)
        p.text(x + 12, 148, "max_batch_size 16", size=13, colour=QUIET)
    for start, end, rest in ((86, 178, "1"), (346, 510, "3, 224, 224"), (678, 784, "384")):
        p.arrow((start, 108), (end, 108))
        p.text((start + end) / 2, 98, f"[2, {rest}]", size=14, anchor="middle", weight="bold")
        p.text((start + end) / 2, 128, "2 rows", size=13, anchor="middle", colour=COMPUTE)
    p.text(16, 192, "boxes: dims as the configuration says them; arrows: what travels", size=13, colour=QUIET)
    return p


def order_of_writes() -> Picture:
    p = Picture(
        262,
        "A kill between two writes: what each order leaves behind",
        """Two orders of the calls. Document, vector, acknowledge: killed after the document, no search finds the item,
        harmless; killed after the vector, the item is whole. Vector, document, acknowledge: killed after the vector, a
        search finds an id about which nothing can be said. Acknowledging before the last write tells of an item that
        may be lost.""",
    )
    rows = (
        (64, "document first", ("document", "vector"), "found by no search:\nharmless", WRITE),
        (162, "vector first", ("vector", "document"), "found, and nothing\nto say about it", COMPUTE),
    )
    for y, name, (first, second), left, colour in rows:
        p.text(16, y + 24, name, weight="bold")
        for x, words, fill in ((160, first, READ), (382, second, READ), (620, "acknowledge", WRITE)):
            p.box(x, y, 110, 38, words, tint(fill, 0.4))
        for x, end, words, shade in ((270, 382, left, colour), (492, 620, "whole, untold:\nbuilt again", WRITE)):
            p.arrow((x, y + 19), (end, y + 19))
            middle = (x + end) / 2
            p.text(middle, y + 14, "kill", size=13, anchor="middle", colour=COMPUTE, weight="bold")
            p.arrow((middle, y + 24), (middle, y + 46), colour=shade)
            p.text(middle, y + 62, words, size=13, anchor="middle")
    return p


def two_indexes() -> Picture:
    p = Picture(
        300,
        "Two ways to look at a part only",
        """Left, IVF: the vectors lie in cells; a query, a cross, looks into its own cell and the nearest others, here
        two of six. Right, HNSW: each vector is linked to its neighbours; a
        query enters somewhere and follows links to ever nearer vectors.""",
    )
    points = [(40, 30), (90, 60), (60, 88), (130, 34), (170, 80), (150, 116), (232, 40), (280, 76), (250, 112)]
    points += [(50, 150), (100, 184), (136, 150), (196, 160), (228, 184), (262, 152), (310, 178), (322, 130)]
    query = (166, 138)
    for left, name in ((16, "IVF: cells"), (416, "HNSW: links")):
        p.text(left, 62, name, weight="bold")
        p.box(left, 74, 368, 196, "", CARD, round=0)
    for column in range(3):
        for row in range(2):
            looked = (column, row) in ((1, 0), (1, 1))
            p.box(16 + 122.7 * column, 74 + 98 * row, 122.7, 98, "", tint(GATHER, 0.4) if looked else CARD, round=0)
    links = [(0, 1), (1, 2), (1, 3), (3, 4), (4, 5), (4, 6), (6, 7), (7, 8), (8, 5), (2, 11), (2, 9), (9, 10)]
    links += [(10, 11), (11, 12), (5, 12), (12, 13), (13, 14), (14, 8), (14, 15), (15, 16), (16, 8), (16, 7)]
    for one, other in links:
        ends = [(416 + points[n][0], 74 + points[n][1]) for n in (one, other)]
        p.arrow(*ends, colour=FAINT, head=False)
    for one, other in ((15, 14), (14, 13), (13, 12), (12, 5)):
        p.arrow(*[(416 + points[n][0], 74 + points[n][1]) for n in (one, other)], colour=READ)
    for left in (16, 416):
        for x, y in points:
            p.add("circle", cx=left + x, cy=74 + y, r=5, fill=INK)
        x, y = left + query[0], 74 + query[1]
        for dx in (-6, 6):
            p.arrow((x - dx, y - 6), (x + dx, y + 6), colour=COMPUTE, head=False)
    p.text(16, 290, "cross: the query; nprobe 2 reads the coloured cells", size=13, colour=QUIET)
    p.text(416, 290, "blue: from an entrance to the nearest", size=13, colour=QUIET)
    return p


def search() -> Picture:
    p = Picture(
        372,
        "A search: your program asks one server and two stores",
        """Your program makes every call. It sends the customer's sentence or picture to the ensemble clip in Triton and
        gets a vector; sends the vector to Milvus and gets the ids of the nearest pictures; asks MongoDB for their
        records; and sends a record in a prompt to tensorrt_llm_bls in the same Triton, whose answer streams.""",
    )
    p.box(16, 168, 96, 58, "customer")
    p.box(196, 52, 130, 304, "", tint(GATHER, 0.15))
    p.text(261, 205, "your\nprogram", anchor="middle", weight="bold")
    p.arrow((112, 184), (196, 184))
    p.arrow((196, 210), (112, 210))
    p.text(154, 176, "asks", size=13, anchor="middle")
    p.text(154, 230, "answer", size=13, anchor="middle")
    rows = (
        ("clip", tint(GATHER, 0.6), "Triton: what does it mean?", "1  sentence or picture", "vector"),
        ("Milvus", tint(READ, 0.4), "which pictures are near?", "2  vector", "ids"),
        ("MongoDB", tint(WRITE, 0.4), "what are they?", "3  ids", "records"),
        ("tensorrt_llm_bls", tint(CALL, 0.4), "Triton: how to say it?", "4  prompt with a record", "streamed answer"),
    )
    for row, (name, colour, does, out, back) in enumerate(rows):
        middle = 90 + 76 * row
        p.box(536, middle - 28, 152, 40, name, colour)
        p.text(612, middle + 30, does, size=13, anchor="middle", colour=QUIET)
        p.arrow((326, middle - 16), (536, middle - 16))
        p.arrow((536, middle + 2), (326, middle + 2))
        p.text(346, middle - 22, out, size=13)
        p.text(516, middle + 18, back, size=13, anchor="end", colour=QUIET)
    return p


def picture_to_rows() -> Picture:
    p = Picture(
        214,
        "A picture becomes 49 rows, as wide as the embedding of a word",
        """A picture of 224 by 224 pixels goes through the trunk, which gives 7 by 7 cells of 1,728 numbers each. The
        projector makes a row of 576 numbers of each cell. The rows stand among the embeddings of the question's words,
        which come from the word table, and all go into the language model.""",
    )
    _cells(p, 24, 62, 98, READ)
    p.text(73, 180, "224 x 224 pixels", size=13, anchor="middle")
    p.box(160, 84, 88, 54, "trunk\n(frozen)", tint(READ))
    p.arrow((122, 111), (160, 111))
    _cells(p, 286, 69, 84, GATHER)
    p.text(328, 180, "49 cells x 1,728", size=13, anchor="middle")
    p.arrow((248, 111), (286, 111))
    p.box(408, 84, 88, 54, "projector\n(trained)", tint(GATHER, 0.6))
    p.arrow((370, 111), (408, 111))
    for row in range(6):
        p.box(534, 66 + 16 * row, 74, 11, "", tint(GATHER, 0.8), edge=None, round=1)
    p.text(571, 180, "49 rows x 576", size=13, anchor="middle")
    p.arrow((496, 111), (534, 111))
    p.box(656, 70, 120, 82, "SmolLM2\n(updated)", tint(COMPUTE, 0.4))
    p.arrow((608, 111), (656, 111))
    p.arrow((716, 184), (716, 152))
    p.text(716, 202, "rows of the words", size=13, anchor="middle", colour=QUIET)
    return p


def _cells(p: Picture, x: float, y: float, side: float, colour: str) -> None:
    step = side / 7
    for row in range(7):
        for column in range(7):
            shade = 0.2 + 0.5 * ((3 * row + 5 * column) % 7) / 7
            p.box(x + step * column, y + step * row, step - 1, step - 1, "", tint(colour, shade), edge=None, round=0)


def ids_of_a_prompt() -> Picture:
    p = Picture(
        232,
        "An id below vocab_size is a word; from there on, a row of the picture",
        """A prompt as a row of ids: words, then vocab_size, vocab_size + 1, up to vocab_size + 48 for the picture, then
        the words of the question. Ids of words point into the word table, which is part of the engine. The others point
        into the prompt embedding table, which travels with the request.""",
    )
    row = (("user", 70, READ), ("\\n", 44, READ), ("V", 56, GATHER), ("V + 1", 64, GATHER), ("…", 96, GATHER),
           ("V + 48", 70, GATHER), ("\\n", 44, READ), ("What", 62, READ), ("is", 44, READ), ("it", 44, READ),
           ("?", 36, READ))  # fmt: skip
    x = 16
    for words, width, colour in row:
        p.box(x, 56, width, 38, words, tint(colour, 0.7 if colour == GATHER else 0.3), size=13)
        x += width + 5
    p.text(700, 112, "V: vocab_size", size=13, colour=QUIET)
    p.box(40, 158, 250, 48, "word table\n(in the engine)", tint(READ, 0.3))
    p.box(400, 158, 290, 48, "prompt embedding table\n(in the request: 49 rows)", tint(GATHER, 0.7))
    p.arrow((75, 94), (120, 158))
    p.arrow((284, 94), (500, 158))
    p.arrow((560, 94), (250, 158), dashed=True)
    return p


def equal_ids() -> Picture:
    p = Picture(
        236,
        "Two pictures, the same ids: what names a block of the KV cache?",
        """The prompts of picture A and picture B have the same ids, so a cache that names its blocks by ids alone finds
        the block of A for B. With an extra id of the picture, 81 and 35, each has a block of its own.""",
    )
    for line, (letter, extra, colour) in enumerate((("A", "81", READ), ("B", "35", GATHER))):
        y = 58 + 92 * line
        p.box(16, y, 96, 56, f"picture {letter}", tint(colour, 0.6))
        p.box(148, y, 206, 56, "V, V + 1, … V + 48, What, …", tint(FAINT, 1.0), size=13)
        p.arrow((112, y + 28), (148, y + 28))
        p.box(590, y, 190, 56, f"block with ids, {extra}", tint(colour, 0.6))
        p.arrow((354, y + 38), (590, y + 38))
        p.text(362, y + (32, 56)[line], f"ids and extra id {extra}", size=13)
    p.arrow((354, 172), (440, 140), (590, 74), colour=COMPUTE, dashed=True)
    p.text(500, 146, "by ids alone", size=13, colour=COMPUTE)
    return p


def controls() -> Picture:
    p = Picture(
        236,
        "From a prompt to a token: where each control acts",
        """The model turns the prompt into a bar for each token, drawn as an outline. Temperature, repetition_penalty,
        top_k and top_p make the filled bars of it. A token is drawn from those; seed decides which. It joins the text,
        and the model goes on, until there are max_tokens. With a beam_width above 1 nothing is drawn: the likeliest
        texts are kept.""",
    )
    steps = ((16, 84, "prompt", CARD), (128, 76, "model", tint(COMPUTE, 0.4)), (232, 92, "", CARD),
             (352, 150, "temperature\nrepetition_penalty\ntop_k, top_p", tint(WAIT, 0.4)), (530, 92, "", CARD),
             (650, 134, "draw, by seed", tint(CALL, 0.4)))  # fmt: skip
    chain(p, 64, 72, steps)
    for left, lengths, fill in ((232, (50, 40, 28, 16), "none"), (530, (70, 52), tint(WAIT, 0.8))):
        for row, length in enumerate(lengths):
            p.box(left + 10, 72 + 15 * row, length, 10, "", fill, round=0)
        p.text(left + 46, 156, "outlined" if fill == "none" else "filled", size=13, anchor="middle", colour=QUIET)
    p.arrow((717, 136), (717, 196), (166, 196), (166, 136))
    p.text(440, 190, "the token joins the text, up to max_tokens", size=13, anchor="middle")
    p.text(16, 224, "beam_width above 1: no draw; the likeliest texts are kept", size=13, colour=QUIET)
    return p


def knobs() -> Picture:
    p = Picture(
        372,
        "Seven knobs along a request's path: three cost memory, four are free",
        """A request waits for a slot (max_batch_size, 8 MB each; batching_strategy, free), then for blocks
        (max_tokens_in_paged_kv_cache, keys and values of each token; batch_scheduler_policy, free). Its prompt is read
        (enable_kv_cache_reuse, free), and its first token becomes text (bls_decodes, free). That is the time to first
        token. The other tokens follow, a step each. precision, the memory of the weights, is for all of the model.""",
    )
    p.arrow((16, 70), (16, 62), (620, 62), (620, 70), colour=QUIET, head=False)
    p.text(318, 56, "time to first token, which the limit is for", size=13, anchor="middle", colour=QUIET)
    columns = (
        ("wait for\na slot", WAIT, ("max_batch_\nsize", "8 MB for\neach slot"), ("batching_\nstrategy", "free")),
        ("wait for\nKV blocks", WAIT, ("max_tokens_in_\npaged_kv_cache", "keys and values\nof each token"),
         ("batch_scheduler_\npolicy", "free")),
        ("read the\nprompt", COMPUTE, ("enable_kv_\ncache_reuse", "free"), None),
        ("first token\nto text", WRITE, ("bls_decodes", "free"), None),
        ("other tokens,\na step each", COMPUTE, None, None),
    )  # fmt: skip
    chain(p, 78, 50, [(16 + 156 * n, 136, words, tint(colour, 0.4)) for n, (words, colour, *_) in enumerate(columns)])
    for n, (_, _, *own) in enumerate(columns):
        for y, knob in zip((150, 252), own, strict=True):
            if knob:
                _knob(p, 16 + 156 * n, y, 136, *knob)
    _knob(p, 328, 252, 448, "precision", "the weights, which reading and every step use")
    p.text(16, 360, "yellow knobs cost memory", size=13, colour=QUIET)
    return p


def _knob(p: Picture, x: int, y: int, width: int, name: str, cost: str) -> None:
    p.box(x, y, width, 86, "", CARD if cost == "free" else tint(GATHER, 0.5))
    first = y + 56 - 8.5 * len(f"{name}\n{cost}".splitlines())
    p.text(x + width / 2, first, name, size=13, anchor="middle")
    p.text(x + width / 2, first + 17 * len(name.splitlines()), cost, size=13, anchor="middle", colour=QUIET)


def order_of_looking() -> Picture:
    p = Picture(
        252,
        "Where to look first: from the outside to the inside",
        """Five steps. Live, asked with GET /v2/health/live: no answer means that Triton has ended, so go to its log.
        Ready, asked with GET /v2/health/ready: no means that a model is missing. The index, POST
        /v2/repository/index, says which and why. The log says what failed first. The config says which line is wrong.
        If all are READY, send what the users send: the error leads to the config.""",
    )
    steps = (("live?", "GET /v2/health/\nlive", READ), ("ready?", "GET /v2/health/\nready", READ),
             ("index: which\nmodel, and why?", "POST /v2/\nrepository/index", READ),
             ("log: what\nfailed first?", "triton.log,\nfrom the top", WAIT),
             ("config: which\nline says so?", "config.pbtxt", WRITE))  # fmt: skip
    chain(p, 92, 50, [(16 + 156 * n, 136, words, tint(colour, 0.4)) for n, (words, _, colour) in enumerate(steps)])
    for n, (_, where, _) in enumerate(steps):
        p.text(84 + 156 * n, 162, where, size=13, anchor="middle", colour=QUIET)
    p.arrow((84, 92), (84, 62), (552, 62), (552, 92), dashed=True)
    p.text(94, 56, "no answer: Triton has ended", size=13)
    p.arrow((396, 186), (396, 222), (708, 222), (708, 174), dashed=True)
    p.text(552, 240, "all READY: send what the users send", size=13, anchor="middle")
    return p


PICTURES = {
    "notebooks/pictures/00_map.svg": map_of_the_course,
    "notebooks/pictures/01_life.svg": life_of_an_engine,
    "notebooks/pictures/01_files.svg": files_of_weights,
    "notebooks/pictures/01_launches.svg": launches,
    "notebooks/pictures/02_commands.svg": two_commands,
    "notebooks/pictures/02_split.svg": split,
    "notebooks/pictures/02_heads.svg": heads,
    "notebooks/pictures/02_shared.svg": shared_heads,
    "notebooks/pictures/03_tree.svg": tree,
    "notebooks/pictures/03_names.svg": names_of_one_prompt,
    "notebooks/pictures/03_shape.svg": shapes,
    "notebooks/pictures/03_holes.svg": holes,
    "notebooks/pictures/04_path.svg": path,
    "notebooks/pictures/04_queues.svg": queues,
    "notebooks/pictures/04_blocks.svg": blocks,
    "notebooks/pictures/05_ways.svg": four_ways,
    "notebooks/pictures/05_threads.svg": threads_of_a_client,
    "notebooks/pictures/05_bytes.svg": bytes_of_a_character,
    "notebooks/pictures/06_place.svg": place_of_temperature,
    "notebooks/pictures/07_order.svg": order_of_settings,
    "notebooks/pictures/08_rows.svg": rows_and_tokens,
    "notebooks/pictures/09_rows.svg": rows_of_beams,
    "notebooks/pictures/10_round.svg": one_round,
    "notebooks/pictures/11_loops.svg": two_loops,
    "notebooks/pictures/12_apis.svg": two_apis,
    "notebooks/pictures/12_front.svg": front_end,
    "notebooks/pictures/12_old_client.svg": old_client,
    "notebooks/pictures/playground_controls.svg": controls,
    "labs/capstone/pictures/knobs.svg": knobs,
    "labs/incidents/pictures/order.svg": order_of_looking,
    "labs/vlm_clip/pictures/13_way.svg": from_encoder_to_engine,
    "labs/vlm_clip/pictures/13_cures.svg": three_cures,
    "labs/vlm_clip/pictures/14_rows.svg": rows_in_front,
    "labs/vlm_clip/pictures/15_search.svg": search,
    "labs/vlm_clip/pictures/15_writes.svg": order_of_writes,
    "labs/vlm_clip/pictures/15_index.svg": two_indexes,
    "labs/vlm_clip/pictures/16_path.svg": picture_to_rows,
    "labs/vlm_clip/pictures/16_prompt.svg": ids_of_a_prompt,
    "labs/vlm_clip/pictures/16_trap.svg": equal_ids,
}


def main(root: Path) -> None:
    for name, draw in PICTURES.items():
        (root / name).write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(find_root())
