"""Starts Spark's JVMs directly: its scripts would first start another JVM to put the command together."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from stack.errors import Unavailable

Output = IO[bytes] | int
START_S = 90.0
_END_S = 5.0
# What Spark's own launcher adds for Java 17 and later.
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_WORDS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
# Small and quick to start: these JVMs only carry messages.
QUICK_WORDS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+PerfDisableSharedMem",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xshare:auto",
)


def spark_home() -> Path:
    """The folder of the installed pyspark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable("pyspark is not installed", hint="Run `make setup`.")
    return Path(spec.origin).resolve().parent


def jvm_command(java: str, memory: str, words: Sequence[str], main: Sequence[str]) -> list[str]:
    """The command of one of Spark's JVMs."""
    return [java, "-cp", _classes(), f"-Xmx{memory}", *QUICK_WORDS, *words, *_WORDS, *main]


def _classes() -> str:
    """The class path as Spark's launcher writes it: an archive of classes is only good for the same one."""
    home = spark_home()
    first = sorted((home / "jars").glob("slf4j-api-*.jar"))[:1]
    return os.pathsep.join(map(str, (home / "conf", *first, home / "jars" / "*")))


def jvm_environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of one of Spark's JVMs, which its Python workers inherit."""
    return {
        **base,
        "SPARK_HOME": str(spark_home()),
        # A worker starts executors by Spark's launcher, which would look for a source tree without it.
        "SPARK_SCALA_VERSION": "2.13",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONHASHSEED": "0",
        "SPARK_CONNECT_MODE": "0",
    }


def start_gateway(
    java: str,
    memory: str,
    words: Sequence[str],
    conf: Mapping[str, str],
    output: Output,
    *,
    meanwhile: Sequence[str] = (),
) -> tuple[Any, subprocess.Popen[bytes]]:
    """A JVM that pyspark can speak to; it ends when its standard input does, so with this process.

    Modules in `meanwhile` are imported while it starts.
    """
    settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    main = ["org.apache.spark.deploy.SparkSubmit", *settings, "pyspark-shell"]
    folder = Path(tempfile.mkdtemp(prefix="feedstack-gateway-"))
    try:
        told = folder / "told"
        process = subprocess.Popen(
            jvm_command(java, memory, words, main),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**jvm_environment(), "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)},
            # Ctrl-C is for us: we stop it.
            start_new_session=True,
        )
        _import_meanwhile(meanwhile)
        port, secret = _await_gateway(process, told)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _connect(port, secret), process


def _import_meanwhile(names: Sequence[str]) -> None:
    """pyspark and what its user needs take as long to load as a JVM to start: both at once.

    For every value that it hands to the JVM, pyspark asks its own test tools whether there is numpy, which
    loads them and all of pandas. We hand it no numpy values: an answer is put there, and two seconds saved.
    """
    sys.modules.setdefault("pyspark.testing.utils", SimpleNamespace(have_numpy=False))  # type: ignore[arg-type]
    for name in ("pyspark.java_gateway", *names):
        importlib.import_module(name)


def _await_gateway(process: subprocess.Popen[bytes], told: Path) -> tuple[int, str]:
    deadline = time.monotonic() + START_S
    while not told.exists():
        if process.poll() is not None:
            raise Unavailable(f"Spark's JVM ended with code {process.returncode} before it served")
        if time.monotonic() > deadline:
            end_jvm(process)
            raise Unavailable(f"Spark's JVM did not serve within {START_S:.0f} s")
        time.sleep(0.02)
    data = told.read_bytes()
    port, length = struct.unpack("!ii", data[:8])
    return port, data[8 : 8 + length].decode()


def _connect(port: int, secret: str) -> Any:
    """pyspark's own way to a JVM that runs already."""
    from pyspark.java_gateway import launch_gateway

    os.environ.update({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret})
    try:
        return launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def end_jvm(process: subprocess.Popen[bytes], limit_s: float = _END_S) -> None:
    """Close its input, which ends it; one that hangs is killed."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
