"""Expressions: equal trees are one object; walking visits each node once."""

import copy
import pickle

from emulator.p4switch.program import expr as e

FIELD = e.FieldRef(3, 1)
SUM = e.Op("+", (FIELD, e.Const(5)))


def test_equal_trees_are_one_object():
    assert e.Op("+", (e.FieldRef(3, 1), e.Const(5))) is SUM
    assert e.Op("-", (e.FieldRef(3, 1), e.Const(5))) is not SUM


def test_a_bool_is_not_a_number():
    assert e.Bool(1) is not e.Const(1)


def test_pickling_and_copying_keep_identity():
    assert pickle.loads(pickle.dumps(SUM)) is SUM
    assert copy.deepcopy(SUM) is SUM


def test_kinds():
    assert SUM.kind == e.DATA
    assert e.Op("<", (FIELD, FIELD)).kind == e.BOOL
    assert e.Op("?", (e.Bool(1), e.HeaderRef(0), e.HeaderRef(1))).kind == e.HEADER
    assert e.StackElement(e.StackRef(0), 0, FIELD).kind == e.HEADER


def test_walk_visits_a_shared_node_once_and_children_first():
    product = e.Op("*", (SUM, SUM))
    assert list(e.walk(product)) == [FIELD, e.Const(5), SUM, product]


def test_walk_goes_deeper_than_recursion_could():
    deep = FIELD
    for _ in range(5_000):
        deep = e.Op("+", (deep, FIELD))
    assert sum(1 for _ in e.walk(deep)) == 5_001
