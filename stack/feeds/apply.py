"""Carries out a plan for feeds: looks at what exists, decides, then makes it so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stack.errors import BadCatalogue
from stack.feeds.avro.schema import AvroSchema
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
    topic_of: Callable[[str, int], str]
    other_owner: Callable[[str], str | None]

    def plan(self, declarations: Sequence[Declaration], allowed: Allowed) -> list[Step]:
        """What would be done; changes nothing."""
        stored = self.catalogue.feeds()
        declarations = [_at_version(one, stored.get(one.spec.name)) for one in declarations]
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
                    owner_stack=self._owner(declaration.spec) if there and name not in stored else None,
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
        stored = self.catalogue.feeds()
        by_name = {one.spec.name: _at_version(one, stored.get(one.spec.name)) for one in declarations}
        for step in steps:
            if step.action is Action.REMOVE:
                self.admin.delete([self._topic(stored[step.feed])])
                self.catalogue.remove(step.feed)
            elif step.action is not Action.KEEP:
                self._carry_out(by_name[step.feed], step)
            done(step)

    def _carry_out(self, declaration: Declaration, step: Step) -> None:
        """Schema first, then the topic, then the catalogue: a crash in between is mended by the next run."""
        spec, topic = declaration.spec, self._topic(declaration.spec)
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
        for subject, schema in schemas_of(declaration):
            self.registry.register(subject, schema)

    def _schema_breaks(self, declaration: Declaration) -> tuple[str, ...]:
        """What the declared schema breaks of the declared level, or else of the subject's own."""
        state, spec = self.registry.state(), declaration.spec
        told = []
        for subject, schema in schemas_of(declaration):
            is_value = subject == value_subject(spec.name)
            level = Level(spec.compatibility) if spec.compatibility and is_value else state.level(subject)
            if state.find_text(subject, schema.text) is None:
                breaks = find_subject_breaks(state, subject, schema, level)
                told += [f"{one.path}: {one.message} ({level}, {one.rule})" for one in breaks]
        return tuple(told)

    def _schema_is_new(self, declaration: Declaration) -> bool:
        state = self.registry.state()
        return any(
            state.find_text(subject, schema.text) is None for subject, schema in schemas_of(declaration)
        )

    def _topic(self, spec: FeedSpec) -> str:
        return self.topic_of(spec.name, spec.version)

    def _owner(self, spec: FeedSpec) -> str | None:
        return self.other_owner(self._topic(spec))

    def _existing(self, specs: Sequence[FeedSpec]) -> Mapping[str, Existing]:
        topics = {self._topic(spec): spec.name for spec in specs}
        found = self.admin.describe(topics)
        settings = self.admin.settings(list(found))
        return {topics[topic]: Existing(about.partitions, settings[topic]) for topic, about in found.items()}


def schemas_of(declaration: Declaration) -> list[tuple[str, AvroSchema]]:
    """The subjects of a feed with their declared schemas: its values, and its keys if they are Avro."""
    spec = declaration.spec
    found = [(value_subject(spec.name), declaration.schema)]
    if spec.key is not None and spec.key.format is KeyFormat.AVRO:
        found.append((key_subject(spec.name), key_schema(spec.key, declaration.schema)))
    return found


def _at_version(declaration: Declaration, stored: FeedSpec | None) -> Declaration:
    """Files declare what a feed is, not which version of it is live: that the catalogue knows."""
    if stored is None:
        return declaration
    return replace(declaration, spec=replace(declaration.spec, version=stored.version))
