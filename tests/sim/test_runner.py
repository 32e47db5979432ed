"""The heap's runner: order of events, deadlines, stopping."""

from dataclasses import dataclass, field

import pytest

from p2pmesh.base.quantities import Micros
from p2pmesh.sim.calendar import RunawayError
from p2pmesh.sim.runner import MachineRunner
from p2pmesh.sim.scheduler import Scheduler


@dataclass
class ScriptedMachine:
    """Answers an event with the effects of the script; its deadline is what the test sets."""

    script: dict[str, tuple[str, ...]]
    due: Micros | None = None
    is_stuck: bool = False
    handled: list[tuple[int, str]] = field(default_factory=list)

    def handle(self, event: str, now: Micros) -> tuple[str, ...]:
        self.handled.append((now, event))
        if event == "deadline" and not self.is_stuck:
            self.due = None
        return self.script.get(event, ())

    def deadline(self) -> Micros | None:
        return self.due


class Setting:
    """A runner whose effects are written down and, if they name an event in ``follow``, posted again."""

    def __init__(self, script: dict[str, tuple[str, ...]], follow: dict[str, str] | None = None) -> None:
        self.scheduler = Scheduler()
        self.machine = ScriptedMachine(script)
        self.performed: list[str] = []
        self.noted: list[object] = []
        self.follow = follow or {}
        self.runner: MachineRunner[str, str] = MachineRunner(
            self.scheduler, self.machine, "deadline", self.perform, lambda now, event, effects: self.noted.append(event)
        )

    def perform(self, effect: str) -> None:
        self.performed.append(effect)
        if effect in self.follow:
            self.runner.post(self.follow[effect])

    def post_due(self, event: str, due: int | None) -> None:
        self.machine.due = None if due is None else Micros(due)
        self.runner.post(event)


def test_all_effects_of_an_event_come_before_those_of_an_event_that_they_cause() -> None:
    setting = Setting({"one": ("a", "b"), "two": ("c",)}, follow={"a": "two"})
    setting.runner.post("one")
    assert setting.performed == ["a", "b", "c"]
    assert setting.noted == ["one", "two"]


def test_the_deadline_event_comes_at_the_deadline() -> None:
    setting = Setting({"deadline": ("late",)})
    setting.post_due("start", 70)
    setting.scheduler.run_until(Micros(69))
    assert setting.performed == []
    setting.scheduler.run_until(Micros(200))
    assert setting.machine.handled == [(0, "start"), (70, "deadline")]


def test_a_deadline_that_moves_on_is_kept_at_its_new_time_and_one_that_moves_up_too() -> None:
    setting = Setting({})
    setting.post_due("start", 70)
    setting.post_due("later", 90)
    setting.scheduler.run_until(Micros(80))
    assert len(setting.machine.handled) == 2
    setting.post_due("sooner", 85)
    setting.scheduler.run_until(Micros(200))
    assert setting.machine.handled[2:] == [(80, "sooner"), (85, "deadline")]


def test_a_machine_that_keeps_a_deadline_that_has_passed_is_stopped() -> None:
    setting = Setting({})
    setting.machine.is_stuck = True
    setting.post_due("start", 70)
    with pytest.raises(RunawayError, match="70 us"):
        setting.scheduler.run_until(Micros(200))


def test_a_deadline_that_is_taken_back_does_not_come() -> None:
    setting = Setting({})
    setting.post_due("start", 70)
    setting.post_due("done", None)
    setting.scheduler.run_until(Micros(200))
    assert [event for _, event in setting.machine.handled] == ["start", "done"]


def test_a_stopped_runner_handles_and_performs_nothing_more() -> None:
    setting = Setting({"one": ("a", "b")})
    setting.follow = {}
    original = setting.perform

    def stop_at_once(effect: str) -> None:
        original(effect)
        setting.runner.stop()

    setting.runner = MachineRunner(setting.scheduler, setting.machine, "deadline", stop_at_once, lambda *_: None)
    setting.post_due("one", 70)
    setting.runner.post("one")
    setting.scheduler.run_until(Micros(200))
    assert setting.performed == ["a"]
    assert setting.machine.handled == [(0, "one")]
