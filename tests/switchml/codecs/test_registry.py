"""Codecs and error feedback by name: the texts that name them, and the errors that say what is wrong with one."""

import re
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.codecs import AGGREGATIONS, CODECS, ERROR_FEEDBACKS, by_number, parse, parse_error_feedback
from switchml.errors import ConfigError

PUBLISHED = [
    *("none", "fp16", "bf16", "randomk", "topk", "threshold", "dgc", "sidco", "hardthreshold", "adaq"),
    *("qsgd", "globalqsgd", "terngrad", "thc", "natural", "u8bit", "sketch", "inceptionn"),
    *("onebit", "signsgd", "signum", "efsignsgd", "powersgd", "szx"),
]


def test_all_are_there():
    assert sorted(CODECS) == sorted(PUBLISHED)
    assert sorted(ERROR_FEEDBACKS) == ["dgc", "efsignsgd", "none", "powersgd", "residual"]


def test_numbers_tell_codecs_apart():
    assert len({codec.number for codec in CODECS.values()}) == len(CODECS)
    assert all(by_number(codec.number) is codec for codec in CODECS.values())
    assert by_number(255) is None


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_codec_says_what_it_is(name):
    codec = parse(name)
    assert codec.aggregation in AGGREGATIONS
    assert codec.error_feedback in ERROR_FEEDBACKS
    assert re.match(r"1\. ", codec.__doc__), "the algorithm in numbered steps"
    assert name in ("none", "fp16", "bf16") or re.search(r"\b(19|20)\d\d\b", codec.__doc__), "the paper"
    assert all(each.metadata["help"] for each in fields(codec))


@pytest.mark.parametrize("name", PUBLISHED)
def test_text_of_settings_is_read_again(name):
    codec = parse(name)
    assert str(codec) == name and parse(str(codec)) == codec
    for each in fields(codec):
        assert parse(f"{name}:{each.name}={str(each.default).lower()}") == codec


@given(st.floats(1e-6, 1))
def test_text_keeps_every_digit(ratio):
    codec = type(parse("topk"))(ratio=ratio)
    assert parse(str(codec)) == codec


def test_settings():
    assert parse("topk:ratio=0.25").ratio == 0.25
    assert parse(" szx : bound=0.1 , mode=abs".replace(" :", ":")).mode == "abs"
    assert parse("randomk:unbiased=true").is_unbiased and not parse("randomk").is_unbiased
    assert parse_error_feedback("residual:beta=0.5").beta == 0.5


@pytest.mark.parametrize(("text", "error"), [
    ("topkk", "unknown codec 'topkk': expected one of adaq, bf16"), ("", "unknown codec ''"),
    ("topk:rato=1", "topk has no setting 'rato'; it has ratio (share"),
    ("fp16:ratio=1", "fp16 has no setting 'ratio' (it has none)"),
    ("topk:ratio=2", "topk: ratio=2.0: expected above 0 and at most 1"), ("topk:ratio=0", "expected above 0"),
    ("topk:ratio=nan", "topk: ratio=nan: expected"), ("topk:ratio=much", "topk: ratio=much: expected a number"),
    ("qsgd:levels=1.5", "qsgd: levels=1.5: expected a whole number"),
    ("randomk:unbiased=perhaps", "expected true or false"), ("topk:ratio", "'ratio': expected key=value"),
    ("topk:", "expected key=value"), ("topk:ratio=0.1,ratio=0.2", "ratio is given twice"),
    ("szx:mode=exact", "szx: mode=exact: expected one of abs, rel"),
    ("thc:bits=4,steps=13", "thc: steps=13: expected at least 15"),
    ("thc:bits=4,steps=17", "expected at most 0 (an even number)"),
])  # fmt: skip
def test_what_is_wrong_is_said(text, error):
    with pytest.raises(ConfigError, match=re.escape(error)):
        parse(text)


def test_unknown_memory():
    with pytest.raises(ConfigError, match="unknown memory 'momentum': expected one of dgc, efsignsgd"):
        parse_error_feedback("momentum")
