"""What the pages say about versions of TensorRT-LLM, against the tables that the commands use."""

from __future__ import annotations

import re

import pytest
from notebook_files import text_sources

from engines.flags import rows
from engines.versions import containers

PAGES = {source.stem[:2]: " ".join(re.sub(r"(?m)^# ?", "", source.read_text()).split()) for source in text_sources()}


@pytest.mark.parametrize("page", PAGES)
def test_a_behaviour_is_dated_by_a_version_and_not_by_a_season(page):
    assert not re.findall(r"(?i)\b(?:until|since|before|after) (?:early|mid|late)[ -]20\d\d", PAGES[page])


def test_where_the_length_penalty_is_lost():
    """Pull request 13633, opened after 1.2.1 was out, mends what 1.2.0 broke."""
    for version, said in (("1.2.0", "in container {}"), ("1.2.1", "in the containers {} to {}")):
        having = sorted(each.tag for each in containers() if each.trtllm == version)
        assert f"{version}, {said.format(having[0], having[-1])}" in PAGES["09"]


def test_generation_logits_need_no_flag_any_more():
    (flag,) = (row for row in rows("trtllm-build") if row.flag == "--gather_generation_logits")
    assert f"since {flag.deprecated.removesuffix('.0')} the flag is deprecated" in PAGES["06"].lower()


def test_no_page_promises_an_effect_that_nvidia_s_backend_has_not():
    for page in PAGES.values():
        assert "top_p_min" not in page  # declared, and ignored
        if "early_stopping" in page:
            assert "declares a BOOL of one byte and reads an int32 of four" in page
