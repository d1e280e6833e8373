"""Log settings of the Java children: quiet, rotated, bounded."""

from __future__ import annotations

from pathlib import Path

_KEEP_FILES = 4
_FILE_SIZE_MB = 10

_TEMPLATE = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSSX}} %p %c{{1}}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {size_mb}MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = {keep}
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
{loggers}"""


def log4j_properties(file: Path, level: str, loggers: dict[str, str]) -> str:
    """A log4j 2 configuration that keeps at most 50 MB of `file`."""
    lines = "".join(
        f"logger.l{number}.name = {name}\nlogger.l{number}.level = {its_level}\n"
        for number, (name, its_level) in enumerate(loggers.items())
    )
    return _TEMPLATE.format(file=file, size_mb=_FILE_SIZE_MB, keep=_KEEP_FILES, level=level, loggers=lines)
