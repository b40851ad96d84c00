"""Options of all commands: numbers with units."""

import click
import pytest
from click.testing import CliRunner

from switchml.cli import options
from switchml.cli.options import BUCKET, SECONDS, SIZE, Count, Quantity, option
from switchml.units import SIZE as SIZES


@click.command()
@option("--size", type=SIZE, default="4M")
@option("--wait", type=SECONDS, default="10s")
@option("--ranks", type=Count(1, 2000), default=4)
@option("--bucket-cap", type=BUCKET)
@option("--payload-bytes", type=Quantity(SIZES, bare="named"), default=256)
def command(**values):
    click.echo(repr({name: value for name, value in sorted(values.items())}))


def run(*arguments):
    options.note.cache_clear()
    return CliRunner().invoke(command, arguments)


def values_of(*arguments):
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return eval(done.stdout), done.stderr


def test_a_bare_number_is_taken_with_a_note_where_it_was_and_in_silence_where_the_name_says_its_unit():
    given, said = values_of("--size", "4096", "--wait", "3")
    assert (given["size"], given["wait"]) == (4096.0, 3.0)
    assert "--size 4096 has no unit: taken as 4096B" in said and "--wait 3 has no unit: taken as 3s" in said
    assert values_of("--payload-bytes", "1024", "--wait", "500ms")[1] == ""


def test_a_bare_bucket_cap_is_refused():
    done = run("--bucket-cap", "25")
    assert done.exit_code == 2 and "25MB" in done.stderr and "bucket_cap_mb=25" in done.stderr


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["--ranks", "0"], "--ranks"), (["--ranks", "1.5"], "not a whole number"), (["--ranks", "many"], "such as 1k"),
    (["--size", "-4MB"], "less than 0"), (["--size", "4 MBytes"], "25MB or 25MiB"),
])  # fmt: skip
def test_nonsense_is_refused(arguments, complaint):
    done = run(*arguments)
    assert done.exit_code == 2 and complaint in done.stderr
