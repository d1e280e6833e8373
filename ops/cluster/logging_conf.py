"""Log settings of the Java children: quiet, rotated, bounded."""

from __future__ import annotations

from pathlib import Path

from ops.cluster.properties import properties_text

_KEEP_FILES = 4
_FILE_SIZE_MB = 10


def log4j_properties(file: Path, level: str, loggers: dict[str, str]) -> str:
    """A log4j 2 configuration that keeps at most 50 MB of `file`."""
    values: dict[str, object] = {
        "status": "error",
        "appender.file.type": "RollingFile",
        "appender.file.name": "file",
        "appender.file.fileName": file,
        "appender.file.filePattern": f"{file}.%i",
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{yyyy-MM-dd'T'HH:mm:ss.SSSX} %p %c{1}: %m%n",
        "appender.file.policies.type": "Policies",
        "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
        "appender.file.policies.size.size": f"{_FILE_SIZE_MB}MB",
        "appender.file.strategy.type": "DefaultRolloverStrategy",
        "appender.file.strategy.max": _KEEP_FILES,
        "rootLogger.level": level,
        "rootLogger.appenderRef.file.ref": "file",
    }
    for number, (name, its_level) in enumerate(loggers.items()):
        values |= {f"logger.l{number}.name": name, f"logger.l{number}.level": its_level}
    return properties_text(values)
