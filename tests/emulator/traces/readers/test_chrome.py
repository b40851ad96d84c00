"""Files in pieces are the files as a whole; broken ones say where they break."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.traces.readers import chrome
from emulator.traces.readers.chrome import ChromeFile
from emulator.traces.readers.progress import WATCHER
from switchml.errors import TraceError

VALUES = st.recursive(
    st.integers(-5, 5) | st.text('},{[]":\\ aé', max_size=6) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab}{", max_size=3), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.lists(st.dictionaries(st.text("abc},{", max_size=3), VALUES, max_size=3), max_size=12)
HEADERS = st.dictionaries(st.sampled_from(["x", "y", "traceName"]), VALUES, max_size=2)


def read(path, **options):
    file = ChromeFile(path, **options)
    return [event for batch in file.batches() for event in batch], file


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(chrome, "BLOCK_BYTES", 7)


@given(before=HEADERS, events=EVENTS, after=HEADERS, indent=st.sampled_from([None, 1]))
def test_blocks_of_any_size_give_what_the_whole_gives(tmp_path_factory, before, events, after, indent):
    path = tmp_path_factory.mktemp("chrome") / "t.json"
    parts = [json.dumps(part, indent=indent)[1:-1].strip() for part in (before, {"traceEvents": events}, after)]
    path.write_text("{" + ",".join(part for part in parts if part) + "}")
    original = chrome.BLOCK_BYTES
    try:
        for block in (1, 5, 64, original):
            chrome.BLOCK_BYTES = block
            found, file = read(path)
            assert found == events
            assert file.header == before | after
    finally:
        chrome.BLOCK_BYTES = original


def test_an_array_without_an_object_and_without_its_end_is_a_trace(tmp_path, small_blocks):
    path = tmp_path / "t.json"
    for text in ('[{"a": 1}, {"b": 2}]', '[{"a": 1},\n{"b": 2}', '[{"a": 1},\n{"b": 2},\n'):
        path.write_text(text)
        assert read(path)[0] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_file_says_where_and_can_be_salvaged(tmp_path, packed):
    events = [{"name": f"event {i}", "args": {"x": [i, {"y": i}]}} for i in range(200)]
    whole = json.dumps({"traceEvents": events, "traceName": "t"}).encode()
    path = tmp_path / ("t.json.gz" if packed else "t.json")
    for cut in range(40, len(whole) - 1, 97):
        if packed:
            data = gzip.compress(whole)
            path.write_bytes(data[: 30 + cut * (len(data) - 40) // len(whole)])
        else:
            path.write_bytes(whole[:cut])
        with pytest.raises(TraceError, match="truncated|breaks off before its events"):
            read(path)
        try:
            found, file = read(path, salvage=True)
        except TraceError:  # not even the beginning is there
            assert packed and cut < 2000
            continue
        assert found == events[: len(found)]
        assert "at byte" in file.broken
        if not packed:
            assert len(found) >= whole[:cut].count(b'"name"') - 1
            assert f"at byte {cut:,}" in file.broken


SOUND = [{"ph": "X", "name": f"event {i}", "args": {"x": i}, "pid": 3, "ts": 7 * i} for i in range(20)]


def spoilt(before, after):
    """A trace with `after` in place of `before`, which it has once, and the byte at which they differ first."""
    whole = json.dumps({"traceEvents": SOUND, "traceName": "t"})
    assert whole.count(before) == 1
    return whole.replace(before, after), whole.index(before)


FAULTS = {
    "a quotation mark": ('"event 12"', '"{"device": "cpu", "dtype": "float32"}(12): run"', 3),
    "the control character 0x01": ('"event 12"', '"event\x0112"', 6),
    "the control character 0x0a": ('"event 12"', '"event\n12"', 6),
    "a backslash": ('"event 12"', r'"C:\path"', 5),
    "several ranks write to one file": ('"event 12", "args"', '"event 12", "arevent 2", "args"', 23),
    "where several ranks": ('"event 12", "args": {"x": 12}', '"event 12\n  "ph": "X",\n  "name": "event 2"', 9),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_no_json_is_called_so_and_salvaged_up_to_the_byte(what, tmp_path, small_blocks):
    before, after, further = FAULTS[what]
    text, at = spoilt(before, after)
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(
        TraceError, match=rf"t\.json is broken at byte {at + further} .*: event 13: .*{what}.*--salvage"
    ):
        read(path)
    found, file = read(path, salvage=True)
    assert found == SOUND[:12]
    assert f"at byte {at + further}" in file.broken
    assert "truncated" not in file.broken


@pytest.mark.parametrize("is_bare", [False, True])
def test_two_traces_in_one_file_are_not_taken_for_one(is_bare, tmp_path):
    text = json.dumps(SOUND if is_bare else {"traceEvents": SOUND, "traceName": "t"})
    path = tmp_path / "t.json"
    path.write_text(f"{text}\n{text}")
    with pytest.raises(TraceError, match="broken at byte .* another trace follows the first"):
        read(path)
    found, file = read(path, salvage=True)
    assert found == SOUND
    assert file.header == ({} if is_bare else {"traceName": "t"})
    place = int(file.broken.split("at byte ")[1].split(" ")[0].replace(",", ""))
    assert len(text) <= place <= len(text) + 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_watcher_sees_how_far_reading_has_come(tmp_path, small_blocks, packed):
    text = json.dumps({"traceEvents": [{"name": "x" * 50, "i": i} for i in range(100)]}).encode()
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    said = []
    token = WATCHER.set(lambda *told: said.append(told))
    try:
        read(path)
    finally:
        WATCHER.reset(token)
    size = path.stat().st_size
    done = [bytes_read for _, bytes_read, _ in said]
    assert {(told[0], told[2]) for told in said} == {(path, size)}
    assert done == sorted(done)
    assert done[-1] == size
    assert done[0] < size


def test_what_is_no_trace_is_refused(tmp_path):
    path = tmp_path / "t.json"
    for text in ("", "hello", '{"a": 1}', '{"traceEvents": 3}'):
        path.write_text(text)
        with pytest.raises(TraceError, match=r"t\.json"):
            read(path)
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "nowhere.json")
