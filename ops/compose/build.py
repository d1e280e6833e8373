"""What is built into the image beside the packages: Kafka's jars, and the archive of Spark's classes.

Runs once, in the image's build: `python -m ops.compose.build`.
"""

from __future__ import annotations

import sys

from ops.cluster.jars import cache_folder, kafka_jars
from ops.cluster.java import find_java
from stack.errors import FeedstackError
from stack.runtime import spark_archive


def main() -> int:
    """Fetch and make; a fault ends the build with one line."""
    try:
        java = find_java()
        kafka_jars(java, print)
        spark_archive.make(spark_archive.archive_file(cache_folder(), java.command), java.command)
    except FeedstackError as error:
        sys.stderr.write(f"feedstack: {error.message}\n{error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
