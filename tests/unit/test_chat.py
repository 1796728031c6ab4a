"""Chat templates, compared with what transformers makes of the same folder."""

from __future__ import annotations

import json

import pytest
import transformers

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
    said = "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
    assert chat.render(folder(tmp_path, GEMMA), "Hi ") == said


# How families write a conversation: where the token for the beginning stands, what they ask of Jinja.
TEMPLATES = {
    "Gemma": GEMMA,
    "Llama 2": "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'].strip() + "
    "' [/INST]' }}{% else %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}",
    "Llama 3": "{% set loop_messages = messages %}{% for m in loop_messages %}{% set content = '<|' + m['role'] + "
    "'|>\n\n' + m['content'] | trim + eos_token %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n\n' }}{% endif %}",
    "Llama 3.2": "{{- bos_token }}\n{%- if not tools is defined %}{{- 'never' }}{%- endif %}\n{%- if strftime_now is "
    "defined %}\n{%- set day = strftime_now('%d %b %Y') %}\n{%- endif %}\n{{- 'Today: ' + day }}{% for m in messages %}"
    "{{- m['content'] }}{% endfor %}",
    "Mistral": "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }}"
    " [/INST]{% else %}{{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}",
    "ChatML": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "Zephyr": "{% for m in messages %}\n{% if m['role'] == 'user' %}\n{{ '<|user|>\n' + m['content'] + eos_token }}\n"
    "{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "Phi-3": "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + '\n' + m['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "Qwen": "{%- if tools %}{{- tools | tojson }}{%- endif %}{%- set ns = namespace(last=messages|length - 1) %}"
    "{%- for m in messages[::-1] %}{%- if m.content is string %}{{- m.role ~ m.content }}{%- endif %}{%- endfor %}"
    "{{- messages | tojson(indent=2) }}{{- ns.last }}",
    "DeepSeek": "{% set ns = namespace(first=true) %}{{ bos_token }}{% for m in messages %}{% if loop.first %}"
    "{% set ns.first = false %}{% endif %}{% if m['role'] == 'system' %}{% continue %}{% endif %}<user>"
    "{{ m['content'] }}{% endfor %}{{ '<assistant>' if ns.first == false }}",
    "with what is trained": "{{ bos_token }}{% for m in messages %}{% generation %}{{ m['content'] }}{{ eos_token }}"
    "{% endgeneration %}{% endfor %}",
    "written out": "<bos>{% for m in messages %}{{ m['content'] }}{% endfor %}",
}


def tokenizer(path, template, adds: str):
    """transformers' tokenizer of bytes, saved; adds: who puts <bos> before every text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    words = ["<unk>", "<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    made.add_special_tokens([AddedToken(word, special=True) for word in words[:3]])
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bos = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    made.post_processor = {
        "a template": bos,
        "one of several": processors.Sequence([processors.ByteLevel(trim_offsets=False), bos]),
        "nobody": processors.ByteLevel(trim_offsets=False),
    }[adds]
    kept = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "chat_template": template}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **kept)
    fast.save_pretrained(path)
    return fast


@pytest.mark.parametrize("adds", ["a template", "one of several", "nobody"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_ids_are_those_of_transformers(name, adds, tmp_path):
    """user problem 52: never two beginnings, and never none. What is rendered goes the way of `preprocessing`."""
    import tokenizers

    theirs = tokenizer(tmp_path, TEMPLATES[name], adds)
    ours = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for roles in (["user"], ["user", "assistant", "user"]):
        said = [{"role": role, "content": f" <{role}> é'猫 "} for role in roles]
        given = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        expected = theirs.apply_chat_template(said, **given)
        found = ours.encode(chat.render(tmp_path, said), add_special_tokens=True).ids
        if name in ("ChatML", "Zephyr", "Qwen") and adds != "nobody":  # no prompt keeps such a tokenizer from it
            assert found.pop(0) == 1
        assert found == expected


def test_a_tokenizer_that_begins_as_bert_does(tmp_path):
    made = folder(tmp_path, "{{ bos_token }}x")
    (made / "tokenizer.json").write_text(json.dumps({"post_processor": {"sep": ["</s>", 2], "cls": ["<bos>", 1]}}))
    assert chat.render(made, "Hi") == "x"
    (made / "tokenizer.json").write_text(json.dumps({"post_processor": None}))
    assert chat.render(made, "Hi") == "<bos>x", "the file was written again"


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
