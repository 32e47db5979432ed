"""One recorded event list, three drivers: by hand, under the simulator's heap, under the node's trio runner.

All three must give the same effects at the same times. The recordings hold deadline events as they came; the two
runners are given only the other events and must find the deadlines by themselves.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros, UnixMillis
from p2pmesh.core.admission import AdmissionMachine, AdmissionPolicy
from p2pmesh.core.coordination import RunMachine, RunPolicy
from p2pmesh.core.generation import GenerationMachine, GenerationPolicy
from p2pmesh.core.membership import MembershipMachine, MembershipPolicy
from p2pmesh.core.text import TextAssembler
from p2pmesh.node.runner import MachineRunner as TrioRunner
from p2pmesh.sim.replay import MACHINES, Recorded, decode_recording, encode_recording, event_classes, replay
from p2pmesh.sim.runner import Machine
from p2pmesh.sim.runner import MachineRunner as HeapRunner
from p2pmesh.sim.scheduler import Scheduler

RECORDINGS = Path(__file__).parent / "recordings"
QUIET_US = 60 * MICROS_PER_SECOND
Effects = tuple[tuple[Micros, Any], ...]


def generation_machine() -> GenerationMachine:
    policy = GenerationPolicy(chunk_tokens=4, credits=2, context_tokens=64, floor_us=2_000_000)
    return GenerationMachine(tuple(range(14)), 8, frozenset({9}), TextAssembler([b"a", b"b", b"c"], ("cab",)), policy)


BUILDERS: dict[str, Callable[[], Machine[Any, Any]]] = {
    "admission": lambda: AdmissionMachine(AdmissionPolicy(hello_us=1_000_000, max_unadmitted=2, max_admitted=3)),
    "coordination": lambda: RunMachine(3, RunPolicy(progress_us=2_000_000, probe_us=1_000_000, publish_us=500_000)),
    "generation": generation_machine,
    "membership": lambda: MembershipMachine(PeerId("me"), MembershipPolicy(capacity=3), seed=1),
}
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))


def load(name: str) -> tuple[str, tuple[Recorded, ...]]:
    return decode_recording((RECORDINGS / f"{name}.jsonl").read_text(encoding="utf-8"))


def deadline_event(machine: str) -> Any:
    return event_classes(machine)["DeadlinePassed"]()


def told_from_outside(machine: str, events: tuple[Recorded, ...]) -> tuple[Recorded, ...]:
    return tuple((now, event) for now, event in events if event != deadline_event(machine))


def run_under_the_heap(machine: str, events: tuple[Recorded, ...]) -> tuple[Effects, tuple[Recorded, ...]]:
    """The effects, and all events as the runner handled them."""
    scheduler = Scheduler()
    effects: list[tuple[Micros, Any]] = []
    handled: list[Recorded] = []
    runner: HeapRunner[Any, Any] = HeapRunner(
        scheduler,
        BUILDERS[machine](),
        deadline_event(machine),
        lambda effect: effects.append((scheduler.now, effect)),
        lambda now, event, _: handled.append((now, event)),
    )
    for now, event in told_from_outside(machine, events):
        scheduler.at(now, lambda event=event: runner.post(event))  # type: ignore[misc]
    scheduler.run_until(Micros(events[-1][0] + QUIET_US))
    return tuple(effects), tuple(handled)


class TrioClock:
    """trio's own time, which the test's clock moves, as a port."""

    def __init__(self) -> None:
        self._start = trio.current_time()

    def now(self) -> Micros:
        return Micros(round((trio.current_time() - self._start) * MICROS_PER_SECOND))

    def unix_ms(self) -> UnixMillis:
        return UnixMillis(0)


async def run_under_trio(machine: str, events: tuple[Recorded, ...]) -> Effects:
    clock = TrioClock()
    start = trio.current_time()
    effects: list[tuple[Micros, Any]] = []

    async def perform(effect: Any) -> None:
        effects.append((clock.now(), effect))

    runner: TrioRunner[Any, Any] = TrioRunner(BUILDERS[machine](), clock, perform, deadline_event(machine))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        for now, event in told_from_outside(machine, events):
            await trio.sleep_until(start + now / MICROS_PER_SECOND)
            await runner.put(event)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(QUIET_US / MICROS_PER_SECOND)
        nursery.cancel_scope.cancel()
    return tuple(effects)


@pytest.mark.parametrize("name", NAMES)
def test_the_heap_gives_the_effects_of_the_recording(name: str) -> None:
    machine, events = load(name)
    effects, handled = run_under_the_heap(machine, events)
    assert effects == replay(BUILDERS[machine](), events)
    assert handled == events


@pytest.mark.parametrize("name", NAMES)
async def test_trio_gives_the_effects_of_the_recording(name: str, autojump_clock: trio.testing.MockClock) -> None:
    machine, events = load(name)
    assert await run_under_trio(machine, events) == replay(BUILDERS[machine](), events)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_written_as_it_was_read(name: str) -> None:
    text = (RECORDINGS / f"{name}.jsonl").read_text(encoding="utf-8")
    assert encode_recording(*decode_recording(text)) == text


def test_every_machine_has_a_recording_with_effects_and_one_with_a_deadline() -> None:
    recorded = [load(name) for name in NAMES]
    for machine in MACHINES:
        events = [event for owner, listed in recorded if owner == machine for _, event in listed]
        assert deadline_event(machine) in events
        assert len({type(event) for event in events}) >= len(event_classes(machine)) - 1
    assert all(replay(BUILDERS[machine](), events) for machine, events in recorded)
