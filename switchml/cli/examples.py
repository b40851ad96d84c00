"""`switchml examples`: lists and copies the installed examples, experiments, and Wireshark dissector."""

from pathlib import Path

import click


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option(
    "--to", "folder", type=click.Path(file_okay=False, path_type=Path), default=".", help="Copy to this folder."
)
@click.option("--path", "only_path", is_flag=True, help="Print the path of the installed file; copy nothing.")
def examples(names: tuple[str, ...], folder: Path, only_path: bool) -> None:
    """List the installed files, or copy them by NAME.

    These are training scripts, experiments on Mininet's networks, an exercise in P4, a dissector for Wireshark and
    tshark, and programs named simple_switch and simple_switch_grpc that start this project's P4 switch.
    """
    from switchml import share
    from switchml.tables import Table, show, text

    if names:
        for file in [share.named(name) for name in names]:
            click.echo(file.path.resolve() if only_path else f"wrote {share.copy(file, folder)}")
        return
    table = Table([text("name"), text("kind"), text("what it is")])
    for file in share.files():
        table.add(file.name, file.kind, file.about)
    show(table)
