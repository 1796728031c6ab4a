"""Chat templates, compared with what transformers makes of the same folder."""

from __future__ import annotations

import json

import pytest

from servinglab import chat
from servinglab.errors import CourseError

GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}<start_of_turn>{{ message['role'] }}\n{{ message['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)


def folder(path, template, **config):
    config = {"bos_token": {"content": "<bos>", "lstrip": False}, "eos_token": "<eos>", **config}
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return path


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "What is 2 + 2? «Größe» 猫"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": " c "}],
    ],
)
def test_it_equals_transformers_on_the_default_model(smollm2_tokenizer_dir, hf_tokenizer, messages):
    wanted = hf_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert chat.render(smollm2_tokenizer_dir, messages) == wanted
    assert wanted.endswith("<|im_start|>assistant\n")


def test_a_plain_prompt_is_one_user_message(tmp_path):
    assert chat.render(folder(tmp_path, GEMMA), "Hi ") == "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"


def test_the_beginning_token_is_left_to_preprocessing(tmp_path):
    """user problem 52: a template that writes BOS and a tokenizer that adds it give two."""
    made = folder(tmp_path, GEMMA)
    assert not chat.render(made, "Hi").startswith("<bos>")


def test_a_template_file_wins_and_named_templates_are_found(tmp_path):
    made = folder(tmp_path, [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "named"}])
    assert chat.render(made, "x") == "named"
    (made / "chat_template.jinja").write_text("file")
    assert chat.render(made, "x") == "file"


def test_no_template_and_a_refusal_are_one_sentence(tmp_path):
    made = folder(tmp_path, None)
    assert chat.template(made) is None
    with pytest.raises(CourseError, match="has no chat template; send the prompt as it is"):
        chat.render(made, "x")
    with pytest.raises(CourseError, match="refuses these messages: System role not supported"):
        chat.render(folder(tmp_path, GEMMA), [{"role": "system", "content": "x"}])
    with pytest.raises(CourseError, match="no tokenizer_config.json"):
        chat.render(tmp_path / "nowhere", "x")


def test_a_template_cannot_reach_into_python(tmp_path):
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(CourseError, match="refuses"):
        chat.render(folder(tmp_path, evil), "x")
