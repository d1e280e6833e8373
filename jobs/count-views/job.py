"""How many pages each user has viewed so far: one count per user, and every change of it written out.

Both feeds stand in schemas/catalog.toml. Deploy it with `stack jobs deploy jobs/count-views`.
"""

from typing import Any

from stack import Feed, Job

views, counts = Feed("page-views"), Feed("views-per-user")
job = Job("count-views")


@job.task(views, store="counts")
def count(view: dict[str, Any], ctx: Any) -> None:
    """One more view of one user. Count and output become visible together, or not at all."""
    user = view["user"]
    number = ctx.state.get(user, 0) + 1
    ctx.state[user] = number
    ctx.emit(counts, {"user": user, "count": number}, key=user)
