"""What must hold between page views and counts, whatever was killed: `stack chaos --job count-views`."""

from collections import Counter
from collections.abc import Iterable, Iterator

from stack import Record


def check(outputs: Iterable[Record], inputs: Iterable[Record]) -> Iterator[str]:
    """Each user's counts are 1, 2, 3 and so on, and the last is the number of the user's views."""
    counts: Counter[str] = Counter()
    for record in outputs:
        counts[record.key] += 1
        count = record.value["count"]
        assert count == counts[record.key], f"{record.key}: {count} comes where {counts[record.key]} belongs"
    views = Counter(record.key for record in inputs)
    for user in views | counts:
        if counts[user] != views[user]:
            yield f"{user}: {views[user]} views, {counts[user]} counts"
