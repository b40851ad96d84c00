"""Tables for people: whole on a narrow terminal, headings within, notes below."""

from emulator.bench.tables import print_table


def test_no_column_is_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("group",), ("a name of quite some length", "1.0", "2.0"), ("other", "10.0", "20.0")]
    print_table(("", "measured [ms]", "predicted [ms]"), rows, before="[title]", notes=["below", ""])
    title, _, headings, group, first, second, _, note = capsys.readouterr().out.splitlines()
    assert title == "[title]" and headings.split() == ["measured", "[ms]", "predicted", "[ms]"]
    assert group.strip() == "group" and first.startswith("a name of quite some length ") and first.endswith(" 2.0")
    assert second.rindex("20.0") + 4 == len(headings) and note == "below"
