"""Log settings of the Java children: quiet, rotated, bounded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ops.cluster.properties import properties_text

_KEEP_FILES = 4
_FILE_SIZE_MB = 10


def log4j_properties(file: Path | None, level: str, loggers: Mapping[str, str]) -> str:
    """A log4j 2 configuration that keeps at most 50 MB of `file`; without one, for standard output."""
    values: dict[str, object] = {
        "status": "error",
        "appender.a.name": "a",
        "appender.a.layout.type": "PatternLayout",
        "appender.a.layout.pattern": "%d{yyyy-MM-dd'T'HH:mm:ss.SSSX} %p %c{1}: %m%n",
        **(_rolling(file) if file else {"appender.a.type": "Console"}),
        "rootLogger.level": level,
        "rootLogger.appenderRef.a.ref": "a",
    }
    for number, (name, its_level) in enumerate(loggers.items()):
        values |= {f"logger.l{number}.name": name, f"logger.l{number}.level": its_level}
    return properties_text(values)


def _rolling(file: Path) -> Mapping[str, object]:
    return {
        "appender.a.type": "RollingFile",
        "appender.a.fileName": file,
        "appender.a.filePattern": f"{file}.%i",
        "appender.a.policies.type": "Policies",
        "appender.a.policies.size.type": "SizeBasedTriggeringPolicy",
        "appender.a.policies.size.size": f"{_FILE_SIZE_MB}MB",
        "appender.a.strategy.type": "DefaultRolloverStrategy",
        "appender.a.strategy.max": _KEEP_FILES,
    }
