"""The transcripts that our switch is held to are what the real simple_switch says."""

import pytest

from tests.peers import cli


@pytest.mark.needs("simple_switch", "simple_switch_CLI")
@pytest.mark.parametrize("name", cli.names())
def test_transcript_is_simple_switch_s(name, require_program):
    transcript = cli.real(require_program("simple_switch"), require_program("simple_switch_CLI"), name)
    assert transcript == cli.read(name)
