"""An entry family that only tests register: it counts the resources that have ended."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lockgate.storage_core.errors import FencedError
from lockgate.storage_core.journal.entries.family import Family, Reaction
from lockgate.storage_core.journal.entries.op import Moment, Op, ResourceEnded, ResourceUsed
from lockgate.storage_core.journal.entries.state import Key, Row, State


class Fruit(Row, frozen=True):
    """The number of times that a resource has ended."""

    TABLE: ClassVar = "fruit"
    KEY: ClassVar = ("resource",)
    INDEXES: ClassVar = (("ended",),)

    resource: str
    ended: int
    at_s: float


class Eat(Op, frozen=True, tag="eat"):
    """Remove a fruit."""

    resource: str

    def fold(self, state: State, moment: Moment) -> None:
        fruit = state.get(Fruit, self.resource)
        if fruit is not None:
            state.delete(fruit)


class Ripen(Op, frozen=True, tag="ripen"):
    """Write a fruit twice, and read none."""

    resource: str

    def fold(self, state: State, moment: Moment) -> None:
        for count in (1, 2):
            state.put(Fruit(resource=self.resource, ended=count, at_s=moment.at_s))


def ended(state: State, moment: Moment, event: ResourceEnded) -> None:
    known = state.get(Fruit, event.resource)
    count = 1 if known is None else known.ended + 1
    state.put(Fruit(resource=event.resource, ended=count, at_s=moment.at_s))


def refuse_used(state: State, moment: Moment, event: ResourceUsed) -> None:
    state.put(Fruit(resource="spoiled", ended=0, at_s=moment.at_s))
    raise FencedError(f"{event.what}: fruit refuses")


def touched(event: ResourceEnded) -> list[Key]:
    return [(Fruit, (event.resource,))]


FRUIT = Family(
    name="fruit",
    version=1,
    rows=(Fruit,),
    ops=(Eat, Ripen),
    reactions=(
        Reaction(event=ResourceEnded, fold=ended, touches=touched),
        Reaction(event=ResourceUsed, fold=refuse_used),
    ),
)
SECOND_FRUIT = msgspec.structs.replace(FRUIT, version=2)
