"""What the checkpoints of a container tell of where an output ends."""

from __future__ import annotations

from stack.engine.output_ends import OutputEnds

NONE = frozenset[int]()


def test_where_a_commit_has_written_the_last_end_counts_and_elsewhere_the_own_one() -> None:
    ends = OutputEnds([5, 5])
    assert ends.told(frozenset({0})) == (5, 5)
    ends.note([8, 9], frozenset({0}), has_points=True, has_new=False)
    # In partition 1 others have written meanwhile: only who writes there, too, must know.
    assert ends.told(NONE) == ends.told(frozenset({0})) == (8, 5)
    assert ends.told(frozenset({1})) == ends.told(None) == (8, 9)


def test_a_task_that_came_brings_what_it_wrote_elsewhere() -> None:
    ends = OutputEnds([5, 5])
    ends.note([8, 9], frozenset({0}), has_points=True, has_new=True)
    assert ends.told(NONE) == (8, 9)


def test_what_a_commit_without_checkpoints_wrote_is_told_by_the_next() -> None:
    ends = OutputEnds([5, 5])
    assert ends.wrote(frozenset({1})) == frozenset({1})
    ends.note([5, 8], frozenset({1}), has_points=False, has_new=False)
    wrote = ends.wrote(frozenset({0}))
    assert wrote == frozenset({0, 1})
    assert ends.told(wrote) == (5, 5)
    ends.note([9, 9], wrote, has_points=True, has_new=False)
    assert ends.wrote(NONE) == NONE
    # Nothing was written: the end is as good as any.
    ends.note([9, 12], NONE, has_points=False, has_new=False)
    assert ends.told(frozenset({1})) == (9, 12)
    ends.note([9, 13], None, has_points=False, has_new=False)
    assert ends.wrote(frozenset({0})) is None


def test_ends_never_go_back_and_grow_where_a_commit_has_written() -> None:
    ends = OutputEnds([5, 5])
    assert ends.is_good([5, 5], NONE)
    assert ends.is_good([6, 5], frozenset({0}))
    assert not ends.is_good([5, 6], frozenset({0}))
    assert not ends.is_good([4, 9], None)
