import numpy as np

from soak.oracle.victims import Victim, Victims
from soak.plan.item import WrittenBy


def victim(index: int, shape: str = "a", tokens: int = 100) -> Victim:
    return Victim(
        ids=np.full(tokens, index, np.int32),
        prompt_len=tokens,
        shape=shape,
        written_by=WrittenBy.DECODE if shape == "d" else WrittenBy.PREFILL,
        index=index,
        step=0,
        part=0,
        written_s=float(index),
    )


def test_memory_is_bounded_by_tokens_and_old_ones_survive() -> None:
    victims = Victims(1, max_tokens=10_000)
    for index in range(5000):
        victims.add(victim(index))
    assert len(victims) == 100
    ages = []
    for number in range(100):
        chosen = victims.choose(number)
        assert chosen is not None
        ages.append(5000 - chosen.index)
    assert min(ages) <= 16
    assert max(ages) > 100  # not only a window of the newest


def test_every_shape_gets_its_share_however_few_it_has() -> None:
    victims = Victims(3)
    for index in range(300):
        victims.add(victim(index, "many"))
    for index in range(40):
        victims.add(victim(index, "few"))
    shapes = [chosen.shape for n in range(60) if (chosen := victims.choose(n)) is not None]
    assert 15 < shapes.count("few") < 45


def test_a_victim_is_used_up_and_a_recipe_is_not() -> None:
    victims = Victims(1)
    victims.add(victim(1, "d"))
    assert victims.has(WrittenBy.DECODE)
    assert not victims.has(WrittenBy.PREFILL)
    for number in range(10):
        assert victims.recipe(number, WrittenBy.DECODE) is not None
    assert victims.recipe(1, WrittenBy.PREFILL) is not None  # its prompt was prefilled, and resumes there
    assert [victims.choose(n) is None for n in range(4)] == [False, False, True, True]
    assert victims.has(WrittenBy.DECODE)  # calibration goes on when probes have used all of them up
    assert victims.recipe(1, WrittenBy.DECODE) is not None


def test_a_poor_recipe_is_copied_only_for_want_of_another_and_calls_for_no_controls_by_itself() -> None:
    victims = Victims(1)
    victims.add(victim(1, "d"), poor_recipe=True)
    assert len(victims) == 1
    assert not victims.has(WrittenBy.DECODE)
    copied = victims.recipe(1, WrittenBy.DECODE)
    assert copied is not None
    assert copied.index == 1
    victims.add(victim(2, "d"))
    assert victims.has(WrittenBy.DECODE)
    assert {made.index for n in range(9) if (made := victims.recipe(n, WrittenBy.DECODE))} == {2}


def test_forgetting_and_clearing() -> None:
    victims = Victims(1)
    one, two = victim(1), victim(2)
    victims.add(one)
    victims.add(two)
    victims.forget(one)
    victims.forget(one)
    assert len(victims) == 1
    victims.clear()
    assert victims.choose(1) is None


def test_with_ages_a_victim_is_left_alone_for_a_while_and_again() -> None:
    now = [100.0]
    victims = Victims(5, oldest_s=1200, clock=lambda: now[0])
    for index in range(400):
        one = victim(index)
        one.written_s = 100.0
        victims.add(one)
    assert not victims.ready
    assert victims.choose(1) is None
    ages: list[float] = []
    for second in range(1, 1400):
        now[0] = 100.0 + second
        number = 1000 * second
        while (chosen := victims.choose(number)) is not None:
            number += 1
            if chosen.uses == 1:
                ages.append(float(second))
    assert len(ages) == 400
    assert 4 <= min(ages) < 8
    assert 512 < max(ages) <= 1025
    for low in (4, 8, 16, 32, 64, 128, 256, 512):  # every doubling has its share
        assert 20 < sum(low < age <= 2 * low + 1 for age in ages) < 90


def test_without_ages_any_is_ready_at_once() -> None:
    victims = Victims(1)
    assert victims.ready is False
    victims.add(victim(1))
    assert victims.ready is True
    victims.clear()
    assert victims.ready is False
