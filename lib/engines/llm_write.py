"""Writing a request with the names of one road, and saying what changed; the second half of llm_api.translate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from engines import EngineError, llm_names, llm_values
from engines.llm_names import ENGINES, ROADS, Row


class Note(NamedTuple):
    """What a translation did to one idea.

    `kind`: "renamed", "written" (the roads differ in what they do without it), "differs" (kept, but it may act
    differently) or "lost" (no counterpart).
    """

    kind: str
    idea: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind:7}  {self.text}"


# Ideas that another idea writes, and the two that matter to a beam search only.
_WRITTEN_ELSEWHERE = ("top k", "top p", "guide type", "bias weights")
_BEAM_ONLY = ("length penalty", "early stopping")


class Writer:
    """Fills `request` with the names of road `target`, one row at a time, and adds to `notes`.

    `said` are the ideas that the source spelled out, `ideas` the value that counts for each idea.
    """

    def __init__(
        self, source: str, target: str, said: Mapping[str, Any], ideas: Mapping[str, Any], notes: list[Note]
    ) -> None:
        self.source, self.target, self.said, self.ideas, self.notes = source, target, said, ideas, notes
        self.engine = target in ENGINES
        self.request: dict[str, Any] = {}

    def write(self, row: Row) -> None:
        """Write what one row of the table is about."""
        value = self.ideas[row.idea]
        if row.idea in _WRITTEN_ELSEWHERE or (row.idea in _BEAM_ONLY and self.ideas["beams"] == 1):
            return
        special = getattr(self, "_" + row.idea.replace(" ", "_"), None)
        if special:
            special(row, value)
        elif row.idea in llm_values.OTHER_FORM and value and row.on(self.source).name != row.on(self.target).name:
            self._lose(row, llm_values.WHY_LOST[row.idea])
        else:
            self._plain(row, value)

    def _plain(self, row: Row, value: Any) -> None:
        here = row.on(self.target)
        same = value == here.default or (row.idea == "min tokens" and value == 1)
        if here.name is None:
            if not same:
                self._lose(row, llm_values.WHY_LOST.get(row.idea, ""))
        elif row.idea in self.said or here.required:
            self.request[here.name] = value
            self._renamed(row)
            if not same and not self.engine and row.idea in llm_values.CAVEATS:
                self._note("differs", row, f"{here.name}: {llm_values.CAVEATS[row.idea]}")
        elif not same:
            self.request[here.name] = value
            self._written(row, value)

    # --- rows that need more than a name; found by `write` under the idea -----------------------------------------

    def _prompt(self, row: Row, text: str) -> None:
        name = row.on(self.target).name
        self.request[name] = text
        if self.source == "chat":
            self._note("renamed", row, f"messages become one text through the chat template, and it is called {name}.")
        else:
            self._renamed(row)

    def _max_tokens(self, row: Row, value: int | None) -> None:
        if value is not None or self.target in ("llm_api", "completions"):
            self._plain(row, value)
        elif self.engine:
            raise EngineError(
                f"Give the request {row.on(self.source).name}: without it {ROADS[self.source]} goes on until the "
                f"sequence is full, and {ROADS[self.target]} needs a number."
            )
        else:
            self._lose(row, "it has no word for 'until the sequence is full' and stops after 32 tokens.")

    def _temperature(self, row: Row, _: Any) -> None:
        ideas, choice = ("temperature", "top k", "top p"), self.ideas["choice"]
        said = [idea for idea in ideas if idea in self.said]
        if self.ideas["beams"] > 1:
            for each in map(llm_names.row, said):
                self._note("lost", each, f"{each.on(self.source).name}: a beam search does not use it.")
            return
        if self.engine and choice and choice[1] > llm_values.MAX_TOP_K:
            raise EngineError(f"top_k is {choice[1]}; {ROADS[self.target]} takes at most {llm_values.MAX_TOP_K}.")
        values = llm_values.write_choice(choice, self.target, said)
        names = {idea: llm_names.row(idea).on(self.target).name for idea in ideas}
        wrote = {names[idea]: value for idea, value in zip(ideas, values, strict=True) if value is not None}
        self.request |= wrote
        how = "write " + " and ".join(f"{name}={value}" for name, value in wrote.items()) if wrote else "leave them out"
        if (choice is None) != (llm_values.choice(self.said, self.target) is None):
            would, does = ("sample", "is greedy") if choice is None else ("be greedy", "samples")
            text = f"{ROADS[self.target]} would {would} with the same values and {ROADS[self.source]} {does}, so "
            self._note("written", row, f"temperature, top_k, top_p: {text}{how}.")
        elif said and not wrote:
            self._note("written", row, f"temperature, top_k, top_p: without them {ROADS[self.target]} is greedy too.")
        for idea in said:
            if names[idea] in wrote:
                self._renamed(llm_names.row(idea))

    def _keep_stop_word(self, row: Row, value: bool) -> None:
        if not self.ideas["stop words"]:
            return
        here = row.on(self.target)
        if here.name is None and value != here.default:
            there, now = ("behind", "before") if value else ("before", "behind")
            text = f"ends {there} the stop word on {ROADS[self.source]} and {now} it on {ROADS[self.target]}."
            self._note("differs", row, f"stop words: the text {text}")
        elif here.name:
            self._plain(row, value)

    def _n(self, row: Row, count: int) -> None:
        beams = self.ideas["beams"]
        if (self.engine and count == beams > 1) or (count == beams == 1):
            return
        name = row.on(self.target).name
        if name is None:
            self._lose(row, "it answers once; sampling_param_best_of computes several and returns the likeliest.")
        elif count > 1 and beams == 1 and self.ideas["choice"] is None and not self.engine:
            self._lose(row, "the copies of a greedy answer are all equal, and SamplingParams refuses them.")
        else:
            self.request[name] = count
            self._renamed(row)
            if self.engine and count > 1:
                text = f"{name}: send it to `ensemble`; NVIDIA's tensorrt_llm_bls takes it and does not pass it on."
                self._note("differs", row, text)

    def _best_of(self, row: Row, count: int | None) -> None:
        if count is None:
            return
        if self.engine:
            self._lose(row, "an engine returns every sequence that it computes.")
        else:
            self._plain(row, count)

    def _beams(self, row: Row, width: int) -> None:
        if width == 1:
            return
        name = row.on(self.target).name
        if name is None:
            self._lose(row, "the answer is a greedy one instead.")
            return
        self.request |= {name: width} if self.engine else {name: True, "best_of": width}
        self._renamed(row, "" if self.engine else "; the width is best_of")
        if not self.engine:
            self._note("differs", row, f"{name}: load the model with max_beam_width={width}, exactly.")

    def _log_probs(self, row: Row, count: int | None) -> None:
        name = row.on(self.target).name
        if count is None:
            return
        if name is None:
            self._lose(row, "return_cumulative_logprob gives their sum.")
            return
        self.request[name], text = llm_values.write_log_probs(count, self.target)
        self._renamed(row)
        if text:
            self._note("differs", row, f"{name}: {text}")

    def _repeat_the_prompt(self, row: Row, repeats: bool) -> None:
        name, openai = row.on(self.target).name, self.target == "completions"
        if self.ideas["stream"] and not openai:
            if repeats:
                self._lose(row, "a stream holds new tokens only.")
            return
        value = repeats if openai else not repeats
        if row.idea in self.said:
            self.request[name] = value
            self._renamed(row)
        elif value != row.on(self.target).default:
            self.request[name] = value
            self._written(row, value)

    def _guide(self, row: Row, guide: tuple[str, Any] | None) -> None:
        if guide is None:
            return
        if row.on(self.target).name is None:
            self._lose(row, "")
            return
        self.request |= llm_values.write_guide(guide, self.target)
        self._renamed(row)

    # --- notes ------------------------------------------------------------------------------------------------

    def _note(self, kind: str, row: Row, text: str) -> None:
        self.notes.append(Note(kind, row.idea, text))

    def _renamed(self, row: Row, more: str = "") -> None:
        old, new = row.on(self.source).name, row.on(self.target).name
        if old != new:
            self._note("renamed", row, f"{old} is called {new}{more}.")

    def _written(self, row: Row, value: Any) -> None:
        text = f"when nothing is said, {ROADS[self.source]} acts like this and {ROADS[self.target]} does not."
        self._note("written", row, f"{row.on(self.target).name}={value}: {text}")

    def _lose(self, row: Row, why: str) -> None:
        name = row.on(self.source).name or row.idea
        self._note("lost", row, f"{name}: {ROADS[self.target]} has no counterpart" + (f"; {why}" if why else "."))
