"""Damaged configs: the linter answers with findings, filling with a RepositoryError, and nothing else comes out."""

import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from repository_helpers import spec
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.repository import RepositoryError, build, contract, fill, lint, placeholders, template

UNREADABLE = {"L013", "L015", "L016"}
PIECES = [b"{", b"}", b"[", b"]", b'"', b"'", b"\\", b"#", b"\n", b"\0", b"\xff", b"${x}", b"$", b":", b",", b"-1",
          b"99999999999999999999", b'"\\377"', b"input", b"TYPE_FP32", b"true",
          b"\xe2\x80\xa8", b"\r", b"'a' \"b\""]  # fmt: skip
SLOW_IS_FINE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=SLOW_IS_FINE)

places = st.floats(0, 1)
edits = st.lists(
    st.one_of(
        st.tuples(st.just("delete"), places, st.integers(1, 40)),
        st.tuples(st.just("insert"), places, st.one_of(st.sampled_from(PIECES), st.binary(max_size=6))),
        st.tuples(st.just("replace"), places, st.one_of(st.sampled_from(PIECES), st.binary(min_size=1, max_size=6))),
        st.tuples(st.just("line"), places, places),  # a line moves, so that braces stay whole more often
    ),
    min_size=1,
    max_size=4,
)


def damage(data: bytes, changes) -> bytes:
    for kind, place, what in changes:
        at = int(place * len(data))
        if kind == "delete":
            data = data[:at] + data[at + what :]
        elif kind == "insert":
            data = data[:at] + what + data[at:]
        elif kind == "replace":
            data = data[:at] + what + data[at + len(what) :]
        else:
            lines = data.split(b"\n")
            lines.insert(int(what * len(lines)), lines.pop(int(place * (len(lines) - 1))))
            data = b"\n".join(lines)
    return data


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    return build(spec(folder), folder / "root")


@QUICK
@given(model=st.sampled_from(contract.MODELS), changes=edits)
def test_lint_of_damaged_configs(clean, model, changes):
    file = clean / model / "config.pbtxt"
    whole = file.read_bytes()
    data = damage(whole, changes)
    try:
        file.write_bytes(data)
        findings = lint(clean)
    finally:
        file.write_bytes(whole)
    for finding in findings:
        assert finding.severity in ("error", "warning") and (finding.message + finding.cure).isprintable()
        if finding.file == str(file):
            assert finding.line is None or 1 <= finding.line <= data.count(b"\n") + 1
    # protobuf's own parser decides whether the file can be read.
    unreadable = any(f.code in UNREADABLE and f.file == str(file) for f in findings)
    assert unreadable == (not readable(data))
    if data == whole:
        assert findings == []


def readable(data: bytes) -> bool:
    try:
        text = data.decode("utf-8")
        text_format.Parse(text, pb.ModelConfig())
        return True
    except (ValueError, RecursionError, text_format.ParseError):
        return False


@QUICK
@given(changes=edits, key=st.sampled_from(["triton_max_batch_size", "tokenizer_dir", "x"]), value=st.text(max_size=8))
def test_fill_of_damaged_templates(changes, key, value):
    text = damage(template("preprocessing").encode(), changes).decode("utf-8", "replace")
    placeholders(text)
    try:
        fill(text, {key: value})
    except RepositoryError as error:
        assert str(error)
