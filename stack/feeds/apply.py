"""Carries out a plan for feeds: looks at what exists, decides, then makes it so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stack.errors import BadCatalogue
from stack.feeds.catalogue import Catalogue
from stack.feeds.declare import Declaration
from stack.feeds.keys import key_schema
from stack.feeds.plan import Action, Allowed, Existing, Step, plan_feed, plan_undeclared
from stack.feeds.registry.compatibility import Level
from stack.feeds.registry.decisions import find_subject_breaks
from stack.feeds.registry.registry import SchemaRegistry
from stack.kafka.admin import KafkaAdmin, TopicPlan
from stack.model.feed import FeedSpec, KeyFormat, key_subject, value_subject


@dataclass(frozen=True)
class Applier:
    """Plans and applies declarations against one stack."""

    admin: KafkaAdmin
    catalogue: Catalogue
    registry: SchemaRegistry
    topic_of: Callable[[str], str]
    other_owner: Callable[[str], str | None]

    def plan(self, declarations: Sequence[Declaration], allowed: Allowed) -> list[Step]:
        """What would be done; changes nothing."""
        stored = self.catalogue.feeds()
        existing = self._existing([one.spec for one in declarations])
        steps = []
        for declaration in declarations:
            name = declaration.spec.name
            there = existing.get(name)
            steps.append(
                plan_feed(
                    declaration,
                    stored.get(name),
                    there,
                    schema_breaks=self._schema_breaks(declaration),
                    schema_is_new=self._schema_is_new(declaration),
                    owner_stack=self.other_owner(self.topic_of(name))
                    if there and name not in stored
                    else None,
                    allowed=allowed,
                )
            )
        declared = {one.spec.name for one in declarations}
        steps += [plan_undeclared(spec, allowed) for name, spec in stored.items() if name not in declared]
        return steps

    def apply(
        self, declarations: Sequence[Declaration], steps: Sequence[Step], done: Callable[[Step], None]
    ) -> None:
        """Carry the steps out, feed by feed. Any refusal stops everything before the first change."""
        refused = [step for step in steps if step.action is Action.REFUSE]
        if refused:
            lines = [f"{step.feed}: {reason}" for step in refused for reason in step.reasons]
            raise BadCatalogue(
                f"{len(refused)} feed(s) refused, nothing was changed:\n"
                + "\n".join(f"  - {x}" for x in lines),
                hint="\n  ".join(dict.fromkeys(step.hint for step in refused if step.hint)),
                faults=tuple(lines),
            )
        by_name = {one.spec.name: one for one in declarations}
        for step in steps:
            if step.action is Action.REMOVE:
                self.admin.delete([self.topic_of(step.feed)])
                self.catalogue.remove(step.feed)
            elif step.action is not Action.KEEP:
                self._carry_out(by_name[step.feed], step)
            done(step)

    def _carry_out(self, declaration: Declaration, step: Step) -> None:
        """Schema first, then the topic, then the catalogue: a crash in between is mended by the next run."""
        spec, topic = declaration.spec, self.topic_of(step.feed)
        self.register(declaration)
        if step.make_anew:
            self.admin.delete([topic])
        if step.make_anew or step.action is Action.CREATE:
            self.admin.create([TopicPlan(topic, spec.partitions, dict(step.settings or {}))])
        else:
            if step.grow_to is not None:
                self.admin.grow(topic, step.grow_to)
            if step.settings:
                self.admin.change_settings(topic, step.settings)
        self.catalogue.put(spec)

    def register(self, declaration: Declaration) -> None:
        """Put the schemas of a feed into the registry, under the compatibility that it declares."""
        spec = declaration.spec
        if spec.compatibility is not None:
            self.registry.set_level(value_subject(spec.name), Level(spec.compatibility))
        self.registry.register(value_subject(spec.name), declaration.schema)
        if spec.key is not None and spec.key.format is KeyFormat.AVRO:
            self.registry.register(key_subject(spec.name), key_schema(spec.key, declaration.schema))

    def _schema_breaks(self, declaration: Declaration) -> tuple[str, ...]:
        """What the declared schema breaks of the declared level, or else of the subject's own."""
        subject, state = value_subject(declaration.spec.name), self.registry.state()
        declared = declaration.spec.compatibility
        level = Level(declared) if declared else state.level(subject)
        if state.find_text(subject, declaration.schema.text) is not None:
            return ()
        breaks = find_subject_breaks(state, subject, declaration.schema, level)
        return tuple(f"{one.path}: {one.message} ({level}, {one.rule})" for one in breaks)

    def _schema_is_new(self, declaration: Declaration) -> bool:
        subject = value_subject(declaration.spec.name)
        return self.registry.state().find_text(subject, declaration.schema.text) is None

    def _existing(self, specs: Sequence[FeedSpec]) -> Mapping[str, Existing]:
        topics = {self.topic_of(spec.name): spec.name for spec in specs}
        found = self.admin.describe(topics)
        settings = self.admin.settings(list(found))
        return {topics[topic]: Existing(about.partitions, settings[topic]) for topic, about in found.items()}
