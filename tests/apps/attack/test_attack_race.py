"""Which class an attack goes for: short attempts in turn, the rest of the steps for the best."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fast_lapsum.apps.attack.protocol import Progress, Result
from fast_lapsum.apps.attack.race import Heat, Race

PICTURE = torch.zeros(3, 1, 1)


class Scripted:
    """An attempt whose B grows by one a step until it fools at ``at``, and then does not change."""

    def __init__(
        self, aim: int | None, steps: int, at: float, found: float, stops: float = math.inf
    ) -> None:
        self.aim, self.steps = aim, steps
        self.at, self.found, self.stops = at, found, stops
        self.step, self.done, self.lowest = 0, False, math.inf

    def tried(self) -> Tensor:
        return PICTURE

    def log_q(self, logits: Tensor) -> Tensor:
        return logits[0]

    def learn(self, tried: Tensor, logits: Tensor, log_q: Tensor, gradient: Tensor) -> Progress:
        self.step += 1
        assert self.step <= self.steps
        if self.step >= self.at:
            self.lowest = self.found
        self.done = self.step >= self.stops
        return Progress(self.step, self.step, 0, 1.0, False, float(self.step), None)

    def result(self, seconds: float) -> Result:
        extra: dict[str, object] = {"aim": self.aim}
        return Result(PICTURE, self.lowest < math.inf, self.step, seconds, self.step, extra)


def _run(
    costs: dict[int | None, float],
    steps: int,
    heats: list[Heat],
    *,
    target: int | None = None,
    logits: tuple[float, ...] = (9.0, 4.0, 5.0, 3.0, 2.0),
    finals: dict[int | None, float] | None = None,
    stops: dict[int | None, int] | None = None,
    stop_after: int | None = None,
) -> tuple[Race, list[Scripted], list[Progress]]:
    """Class 0 is the true one. ``costs`` says at which step an attempt fools, and with which B."""
    begun: list[Scripted] = []

    def begin(aim: int | None, allowed: int) -> Scripted:
        cost = costs.get(aim, math.inf)
        is_last = bool(heats) and allowed > heats[-1].steps
        found = finals.get(aim, cost) if finals and is_last else cost
        begun.append(Scripted(aim, allowed, cost, found, (stops or {}).get(aim, math.inf)))
        return begun[-1]

    race = Race(begin, 0, target, steps, heats)
    said = []
    for _ in range(steps if stop_after is None else stop_after):
        if race.done:
            break
        tried = race.tried()
        row = torch.tensor(logits)
        said.append(race.learn(tried, row, race.log_q(row), torch.zeros_like(PICTURE)))
    return race, [one for one in begun if one.step], said


def test_the_class_that_fools_with_least_gets_what_is_left() -> None:
    costs: dict[int | None, float] = {1: 4.0, 2: 6.0, 3: 2.0, 4: 1.0}
    race, attempts, said = _run(costs, 60, [Heat(4, 8)])
    # Away from the true class, then the others by logit; class 4 comes too late to take part.
    assert [one.aim for one in attempts] == [None, 2, 1, 3, 3]
    assert [one.steps for one in attempts] == [8, 8, 8, 8, 28]
    assert [one.step for one in said] == list(range(1, 61))
    assert race.done
    result = race.result(1.5)
    assert (result.calls, result.steps, result.seconds) == (60, 60, 1.5)
    assert result.extra["aim"] == 3
    assert said[-1].best_budget == 2.0


def test_the_second_heat_is_among_the_best_of_the_first() -> None:
    costs: dict[int | None, float] = {1: 4.0, 2: 5.0, 3: 6.0, 4: 3.0}
    _, attempts, _ = _run(costs, 64, [Heat(5, 7), Heat(2, 9)])
    assert [one.aim for one in attempts] == [None, 2, 1, 3, 4, 4, 1, 4]
    assert sum(one.step for one in attempts) == 64


def test_away_from_the_true_class_wins_where_it_costs_least() -> None:
    costs: dict[int | None, float] = {None: 3.0, 1: 4.0, 2: 5.0}
    race, attempts, _ = _run(costs, 50, [Heat(3, 7), Heat(2, 9)])
    assert [one.aim for one in attempts] == [None, 2, 1, None, 1, None]
    assert race.result(0.0).extra["aim"] is None


def test_an_attempt_that_stops_early_leaves_its_steps_to_the_last() -> None:
    costs: dict[int | None, float] = {1: 4.0, 2: 6.0, 3: 2.0}
    _, attempts, _ = _run(costs, 60, [Heat(4, 8)], stops={1: 5})
    taken = [(one.aim, one.step) for one in attempts]
    assert taken == [(None, 8), (2, 8), (1, 5), (3, 8), (3, 31)]


def test_the_best_picture_of_all_attempts_is_kept() -> None:
    costs: dict[int | None, float] = {1: 4.0, 2: 2.0, 3: 6.0}
    finals: dict[int | None, float] = {2: 5.0}
    race, attempts, said = _run(costs, 48, [Heat(4, 8)], finals=finals)
    assert attempts[-1].lowest == 5.0
    assert said[-1].best_budget == 2.0
    assert race.lowest == 2.0
    assert race.result(0.0).success


def test_where_no_class_is_reached_the_true_one_is_left() -> None:
    race, attempts, said = _run({}, 50, [Heat(3, 8), Heat(2, 8)])
    assert [(one.aim, one.step) for one in attempts] == [(None, 8), (2, 8), (1, 8), (None, 26)]
    assert said[-1].best_budget is None
    assert race.done
    assert not race.result(0.0).success


def test_stopped_between_two_attempts_the_last_one_tells() -> None:
    race, _, _ = _run({}, 60, [Heat(3, 8)], stop_after=8)
    result = race.result(0.0)
    assert not race.done
    assert (result.success, result.calls, result.extra["aim"]) == (False, 8, None)


@pytest.mark.parametrize(
    ("target", "logits", "heats"),
    [
        (3, (9.0, 4.0, 5.0, 3.0), [Heat(3, 8)]),
        (None, (9.0, 4.0), [Heat(3, 8)]),
        (None, (9.0, 4.0, 5.0), []),
    ],
    ids=["target", "two classes", "few steps"],
)
def test_no_race_where_there_is_nothing_to_choose(
    target: int | None, logits: tuple[float, ...], heats: list[Heat]
) -> None:
    _, attempts, _ = _run({target: 5.0}, 20, heats, target=target, logits=logits)
    assert [(one.aim, one.step) for one in attempts] == [(target, 20)]
