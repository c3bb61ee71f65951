"""The ids that were sent, made again from the plan, the recipes and the answers in the journal.

Every row of ids is checked against the digest of what was sent: what comes out of here went to the server.
"""

from __future__ import annotations

import numpy as np

from soak.incident.journal_codec import digest8
from soak.incident.journal_reader import JournalReader, PromptRow
from soak.incident.journal_recipe import Source, rebuild
from soak.incident.trace import Origin
from soak.plan.adaptive import decision_of
from soak.plan.item import Item, Segment
from soak.plan.plan import Plan
from soak.plan.restored import spec_of
from soak.plan.spec import PLAN_VERSION
from soak.plan.strict import code_of
from soak.sglang.exchange import Outcome, TokenIds


class TraceUnavailable(Exception):
    """An incident of which the journal holds too little to make a trace; the message says what is missing."""


class IdsMissing(Exception):
    """These ids cannot be made again; the message says why."""


class SentIds:
    """All ids of one journal's rows, each made once."""

    def __init__(self, journal: JournalReader) -> None:
        self._journal = journal
        self._plans: dict[int, Plan] = {}
        self._items: dict[tuple[int, int], tuple[Item, ...]] = {}
        self._loads: dict[tuple[int, int], dict[tuple[int, int], PromptRow]] = {}
        self._made: dict[int, TokenIds] = {}
        self._passes: dict[tuple[int, int, Origin], dict[int, PromptRow]] = {}

    def plan(self, session: int) -> Plan:
        """The plan of one process. Raises TraceUnavailable where this soak plans otherwise."""
        if session not in self._plans:
            row = self._journal.session(session)
            if row.plan_version != PLAN_VERSION:
                raise TraceUnavailable(
                    f"planned by soak {row.soak_version} (plan version {row.plan_version}); this one plans "
                    f"by version {PLAN_VERSION} and would make other ids. Use that soak, or a bundle of it"
                )
            try:
                spec = spec_of(row.spec)
            except ValueError as error:
                raise TraceUnavailable(f"the resolved spec in the journal cannot be read: {error}") from error
            try:
                taken = [decision_of(said, spec) for said in self._journal.decisions(row.run_id)]
                self._plans[session] = Plan(row.seed, spec, row.nonce, taken)
            except ValueError as error:
                raise TraceUnavailable(f"the decisions in the journal cannot be followed: {error}") from error
        return self._plans[session]

    def item(self, row: PromptRow) -> Item:
        """The planned item of a load prompt."""
        key = (row.session, row.index)
        if key not in self._items:
            self._items[key] = self.plan(row.session).items(row.index)
        for item in self._items[key]:
            if item.step == row.step and row.part < len(item.prompts):
                return item
        raise IdsMissing(f"the plan has no step {row.step}, part {row.part} at index {row.index}")

    def adapter(self, row: PromptRow) -> str:
        """The LoRA adapter that a load prompt was sent to, "" for none."""
        which = self.item(row).adapter
        return "" if which is None else self.plan(row.session).spec.geometry.adapters[which]

    def code(self, row: PromptRow) -> str:
        """The constant of the JSON schema that a load prompt's answer was bound to, "" for none."""
        plan = self.plan(row.session)
        return code_of(plan.seed, plan.nonce, row.index, row.part) if self.item(row).strict else ""

    def load_row(self, session: int, index: int, step: int, part: int | None) -> PromptRow:
        """The row of a load prompt; for part None the last answered well, which follow-ups go on from."""
        key = (session, index)
        if key not in self._loads:
            rows = self._journal.load_prompts(session, index, 1 << 30)
            self._loads[key] = {(row.step, row.part): row for row in rows}
        found = [
            row
            for (at, place), row in self._loads[key].items()
            if at == step and (place == part if part is not None else row.outcome == Outcome.OK)
        ]
        if not found:
            raise IdsMissing(f"load prompt {index}, step {step} is not in the journal any more")
        return max(found, key=lambda row: row.part)

    def of(self, row: PromptRow) -> TokenIds:
        """What was sent. Raises IdsMissing."""
        if row.seq not in self._made:
            made = self._load(row) if row.origin is Origin.LOAD else self._pass(row)
            if digest8(made) != row.digest:
                raise IdsMissing(f"{row.origin.value} {row.index}, step {row.step}: other ids than were sent")
            self._made[row.seq] = made
        return self._made[row.seq]

    def whole(self, row: PromptRow) -> TokenIds:
        """What was sent and what came back."""
        return np.concatenate([self.of(row), row.output_ids])

    def parent(self, row: PromptRow) -> PromptRow | None:
        """The prompt that a follow-up goes on from."""
        parent = self.item(row).parent
        return None if parent is None else self.load_row(row.session, row.index, parent, None)

    def _load(self, row: PromptRow) -> TokenIds:
        own = self.plan(row.session).ids(self.item(row).prompts[row.part])
        parent = self.parent(row)
        return own if parent is None else np.concatenate([self.whole(parent), own])

    def victim(self, row: PromptRow) -> PromptRow:
        """The load prompt that a pass is about. Raises IdsMissing."""
        index, step, part = row.recipe["victim"]
        return self.load_row(row.session, index, step, part)

    def _pass(self, row: PromptRow) -> TokenIds:
        def source(name: Source) -> TokenIds:
            if name[0] == "victim":
                return self.whole(self.victim(row))
            if name[0] == "tail":
                plan = self.plan(row.session)
                return Segment(*row.recipe["tail"]).ids(plan.seed, plan.nonce, plan.spec.geometry)
            earlier = self._beside(row)[name[1]]
            return self.of(earlier) if name[0] == "sent" else earlier.output_ids

        try:
            literal = row.literal if row.literal is not None else np.empty(0, np.int32)
            return rebuild(row.recipe["pieces"], literal, source)
        except (KeyError, ValueError) as error:
            raise IdsMissing(f"{row.what} pass of probe {row.index}: {error}") from error

    def _beside(self, row: PromptRow) -> dict[int, PromptRow]:
        key = (row.session, row.index, row.origin)
        if key not in self._passes:
            rows = self._journal.passes(row.session, row.index)
            self._passes[key] = {other.step: other for other in rows if other.origin is row.origin}
        return self._passes[key]
