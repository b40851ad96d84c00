"""Options of all commands: old names, numbers with units."""

import click
import pytest
from click.testing import CliRunner

from switchml.cli import options
from switchml.cli.options import BUCKET, SECONDS, SIZE, Count, Quantity, option
from switchml.units import SIZE as SIZES


@click.command()
@option("--loss", "loss_rate", was="--loss-rate", type=float, default=0.0)
@option("--slow", was=("--slowly", "--late"), multiple=True)
@option("--fast", "-f", is_flag=True, was="--quick")
@option("--size", type=SIZE, default="4M")
@option("--wait", type=SECONDS, default="10s")
@option("--ranks", type=Count(1, 2000), default=4, was="--workers")
@option("--bucket-cap", type=BUCKET, was="--bucket-bytes")
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


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--loss-rate", "0.5"], "loss_rate", 0.5),
        (["--slowly", "a", "--slowly=b"], "slow", ("a", "b")),
        (["--late", "c"], "slow", ("c",)),
        (["--quick"], "fast", True),
        (["--workers=1k"], "ranks", 1000),
        (["--bucket-bytes", "4096"], "bucket_cap", 4096.0),
    ],
)
def test_an_old_name_works_with_a_note(arguments, name, value):
    given, said = values_of(*arguments)
    assert given[name] == value
    assert said.startswith("switchml: note: --") and said.count("\n") == 1 and "is called" in said


def test_old_names_are_not_in_help_and_do_not_go_with_new_ones():
    assert not any(old in run("--help").output for old in ("--loss-rate", "--slowly", "--quick", "--workers"))
    done = run("--loss", "0.1", "--loss-rate", "0.2")
    assert done.exit_code == 2 and "--loss-rate is the old name of --loss: give one of them" in done.stderr


def test_a_bare_number_is_taken_with_a_note_where_it_was_and_in_silence_where_the_name_says_its_unit():
    given, said = values_of("--size", "4096", "--wait", "3")
    assert (given["size"], given["wait"]) == (4096.0, 3.0)
    assert "--size 4096 has no unit: taken as 4096B" in said and "--wait 3 has no unit: taken as 3s" in said
    assert values_of("--payload-bytes", "1024", "--wait", "500ms")[1] == ""


def test_a_bare_bucket_cap_is_refused():
    done = run("--bucket-cap", "25")
    assert done.exit_code == 2 and "25MB" in done.stderr and "bucket_cap_mb=25" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "0"], "--ranks"),
        (["--ranks", "1.5"], "not a whole number"),
        (["--ranks", "many"], "such as 1k"),
        (["--size", "-4MB"], "less than 0"),
        (["--size", "4 MBytes"], "25MB or 25MiB"),
    ],
)
def test_nonsense_is_refused(arguments, complaint):
    done = run(*arguments)
    assert done.exit_code == 2 and complaint in done.stderr


def test_nonsense_by_an_old_name_is_refused_by_the_new_one_after_the_note():
    said = run("--workers", "0").stderr
    assert 0 <= said.find("--workers is called --ranks now") < said.find("Invalid value for '--ranks'")
