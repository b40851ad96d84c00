"""Rings in a node whose links make no full mesh."""

import dataclasses

import pytest

from emulator.cluster import cluster as clusters
from emulator.cluster.rings import ring_rates
from switchml.errors import ConfigError

MEASURED = {2: 22.9e9, 3: 46.2e9, 4: 89e9, 5: 37.7e9, 6: 46.8e9, 7: 90.7e9}
"""Bytes a second of a ring among the first GPUs of a DGX-1, of nccl-tests' tables of so many."""


@pytest.mark.parametrize("name", ["v100-dgx1", "v100-100g"])
def test_groups_of_a_cube_mesh(name):
    inside = clusters.load(name).inside
    for ranks, rate in MEASURED.items():
        assert inside.ring_bytes_per_s(ranks) == pytest.approx(rate, rel=0.03)
        assert inside.link_bytes_per_s * ring_rates(inside.links, ranks) == pytest.approx(rate, rel=0.03)
    assert inside.ring_bytes_per_s(8) == inside.bytes_per_s
    assert [ring_rates(inside.links, ranks) for ranks in range(2, 9)] == [1, 2, 4, 1.6, 2, 4, 6]


def test_a_full_mesh_by_hand():
    """Each of four has a link to each other one: one cycle, both ways; a second one would need a link twice."""
    mesh = tuple((a, b, 1) for a in range(4) for b in range(a + 1, 4))
    assert ring_rates(mesh, 4) == 2.0
    assert ring_rates(tuple((a, b, 2) for a, b, _ in mesh), 4) == 6.0  # all three cycles
    assert ring_rates(((0, 1, 1), (1, 2, 1)), 3) == pytest.approx(4 / 3)


def test_too_many_rings_are_refused():
    mesh = tuple((a, b, 100) for a in range(12) for b in range(a + 1, 12))
    with pytest.raises(ConfigError, match="give group_bytes_per_s"):
        ring_rates(mesh, 12)


def test_links_have_three_numbers():
    inside = clusters.load("v100-dgx1").inside
    with pytest.raises(ConfigError, match=r"links has \[0, 1\]; expected two accelerators"):
        dataclasses.replace(inside, links=((0, 1),))
