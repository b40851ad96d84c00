"""Whatever a controller writes or reads, it is done or refused; and a batch that fails leaves everything as it was."""

import random

import pytest

from emulator.p4switch.p4runtime.entities import Entities
from emulator.p4switch.p4runtime.pipeline import Pipeline
from emulator.p4switch.state.state import State
from switchml.errors import SwitchMLError
from tests.support.p4runtime_controller import PATHS, Stub, config, load, v1
from tests.support.p4runtime_seeds import SEEDS, change


def everything(entities: Entities) -> list[bytes]:
    return sorted(entity.SerializeToString() for entity in entities.everything())


@pytest.mark.parametrize("name", SEEDS)
def test_done_or_refused(name):
    dice = random.Random(name)
    entities = Entities(Pipeline(config(name), State(load(PATHS[name]))))
    seeds = [v1.Entity(**seed) for seed in SEEDS[name](Stub(config(name).p4info))]
    n_done = 0
    for _ in range(150):
        updates = []
        for _ in range(2):
            updates.append(v1.Update(type=dice.choice((1, 1, 2, 3)), entity=dice.choice(seeds)))
            for _ in range(dice.choice((0, 0, 1, 2))):
                change(updates[-1].entity, dice)
        if dice.random() < 0.5:
            n_done += entities.write(updates).count(None)
        else:
            before = everything(entities)
            outcome = entities.write_all_or_none(updates)
            assert None not in outcome or outcome == [None, None]
            if outcome != [None, None]:
                assert everything(entities) == before, updates
        try:
            entities.read([updates[0].entity])
        except SwitchMLError as error:
            assert str(error)
    assert n_done > 5
