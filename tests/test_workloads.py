"""What ships in ``workloads/``: it loads, fits several servers, and its header tells the truth about it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from soak import config
from soak.cli import main
from soak.drive.beside_others import BESIDE_OTHERS
from soak.drive.conjunctions import CONJUNCTIONS
from soak.plan.cost import ProbeTerms, cost
from soak.plan.geometry import Geometry
from soak.plan.plan import Plan
from soak.plan.shapes import DISRUPTIVE, SHAPES
from soak.run.parts import IN_FLIGHT

FOLDER = Path(__file__).parents[1] / "workloads"
PATHS = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "demo")
SHIPPED = {
    "smoke", "nightly", "week", "hybrid-state", "long-context", "pressure", "tenants", "probe-only",
}  # fmt: skip
GEOMETRIES = {
    "default": Geometry(),
    "small": Geometry(context_len=512, chunk=128, max_total_tokens=2048),
    "hybrid": Geometry(
        vocab_size=151_936, context_len=32_768, chunk=8192, page=64, state_grid=64, track_interval=256,
        max_total_tokens=800_000, hybrid=True, strategy="extra_buffer",
    ),
    "window": Geometry(context_len=131_072, chunk=2048, page=16, window=1024, max_total_tokens=300_000),
}  # fmt: skip


def header(path: Path) -> str:
    """The comment at the top, as one line."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def part(path: Path, name: str) -> str:
    """What the header says under that word, up to the next one."""
    found = re.search(rf"{name}(.*?)(?= Reaches:| Costs:| Do not run it|$)", header(path))
    assert found, f"{path.name}: no {name} in its header"
    return found[1].strip()


def test_all_of_them_ship() -> None:
    assert {path.stem for path in PATHS} == SHIPPED


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
class TestEach:
    def test_it_names_itself_and_on_what_not_to_run_it(self, path: Path) -> None:
        assert header(path).startswith(f"{path.stem}: ")
        assert len(part(path, "Do not run it on ")) > 40

    def test_its_header_names_the_conjunctions_that_its_shapes_reach(self, path: Path) -> None:
        loaded = config.load(path)
        known = BESIDE_OTHERS if loaded.load.none else CONJUNCTIONS
        wanted = [c.name for c in known if c.reached_by in loaded.spec_shapes]
        assert part(path, "Reaches:").removesuffix(".").split(", ") == wanted

    def test_it_requires_only_what_it_reaches(self, path: Path) -> None:
        loaded = config.load(path)
        reached_by = {c.name: c.reached_by for c in (*BESIDE_OTHERS, *CONJUNCTIONS)}
        for name in loaded.detect.require_coverage or ():
            assert reached_by[name] in loaded.spec_shapes

    def test_its_budget_is_stated(self, path: Path) -> None:
        budget = config.load(path).budget
        stated = budget.model_fields_set
        assert {"in_flight", "tokens_per_second", "pool_share_per_minute"} <= stated
        assert budget.in_flight is not None
        assert budget.in_flight <= IN_FLIGHT

    @pytest.mark.parametrize("name", GEOMETRIES)
    def test_it_fits_servers_of_several_kinds(self, path: Path, name: str) -> None:
        spec = config.load(path).resolve(GEOMETRIES[name])
        plan = Plan(7, spec)
        seen = set()
        for items in itertools.islice(plan.walk(), 300):
            seen.add(items[0].shape)
            for item in items:
                for prompt in item.prompts:
                    assert 0 < prompt.length + item.max_new_tokens <= spec.max_context
        most = max(weight for _, weight in spec.weights)
        assert {shape for shape, weight in spec.weights if weight * 15 > most} <= seen

    def test_its_header_states_its_cost(self, path: Path) -> None:
        loaded = config.load(path)
        terms = ProbeTerms(4, 64, 0.5, 0.5, 60)
        found = cost(Plan(loaded.run.seed, loaded.resolve(Geometry())), terms)
        told = re.search(r"up to ([\d.]+) million prefill and ([\d.]+) million decode", part(path, "Costs:"))
        assert told
        assert float(told[1]) * 1e6 == pytest.approx(found.prefill_tokens, rel=0.05)
        assert float(told[2]) * 1e6 == pytest.approx(found.decode_tokens, rel=0.05)

    def test_the_command_line_knows_its_cost_and_its_plan(self, path: Path) -> None:
        done = CliRunner().invoke(main, ["plan", str(path), "--cost"])
        assert done.exit_code == 0
        assert "probes a minute within these budgets" in done.stdout
        done = CliRunner().invoke(main, ["plan", str(path), "--count", "3"])
        assert done.exit_code == 0
        assert len(done.stdout.splitlines()) >= 3


def test_nightly_has_every_shape_and_week_all_that_disturb_nobody() -> None:
    def shapes(name: str) -> frozenset[str]:
        return config.load(FOLDER / f"{name}.yaml").spec_shapes

    assert shapes("nightly") == set(SHAPES)
    assert shapes("week") == shapes("nightly") - DISRUPTIVE


def test_only_those_that_say_so_are_disruptive() -> None:
    disruptive = {path.stem for path in PATHS if config.load(path).target.disruptive}
    assert disruptive == {"nightly", "pressure"}
