from soak.drive.brake import Brake, StopLimits
from soak.sglang.server_metrics import parse_metrics


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def metrics(queued: int, usage: float) -> str:
    return f"sglang:num_queue_reqs {queued}\nsglang:token_usage {usage}\n"


def test_a_long_queue_closes_it_and_a_short_one_opens_it() -> None:
    brake = Brake(StopLimits(queue=10))
    assert brake.reason is None
    brake.server_says(parse_metrics(metrics(11, 0.5)))
    assert brake.reason == "server-queue"
    brake.server_says(parse_metrics(metrics(10, 0.5)))
    assert brake.reason is None


def test_a_full_pool_is_pressure_only_when_somebody_waits() -> None:
    brake = Brake(StopLimits(token_usage=0.9))
    brake.server_says(parse_metrics(metrics(0, 0.95)))
    assert brake.reason is None
    brake.server_says(parse_metrics(metrics(1, 0.95)))
    assert brake.reason == "server-token-usage"


def test_a_late_first_token_closes_it_for_as_long_as_it_was_late() -> None:
    clock = Clock()
    brake = Brake(StopLimits(ttft_s=5), clock)
    brake.first_token_after(4.9)
    assert brake.reason is None
    brake.first_token_after(8)
    assert brake.reason == "server-ttft"
    clock.now += 3.1
    assert brake.reason is None


def test_without_metrics_it_stays_open() -> None:
    brake = Brake(StopLimits(queue=1))
    brake.server_says(parse_metrics(metrics(5, 1.0)))
    brake.server_says(None)
    assert brake.reason is None


def test_load_that_is_held_back_is_no_pressure() -> None:
    brake = Brake(StopLimits(queue=10))
    brake.held = "alone"
    assert (brake.reason, brake.pressure) == ("alone", None)
    brake.server_says(parse_metrics(metrics(11, 0.5)))
    assert (brake.reason, brake.pressure) == ("server-queue", "server-queue")
    brake.server_says(None)
    brake.held = None
    assert brake.reason is None
