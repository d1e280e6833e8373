"""What `stack up` refuses before it starts anything."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from ops.cluster import control, processes
from stack.errors import ClusterFault
from stack.settings import Settings, parse_settings


def settings_in(folder: Path, text: str = 'name = "x"') -> Settings:
    return parse_settings(text, folder / "stack.toml")


def test_a_full_disk_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    settings = settings_in(tmp_path)
    with pytest.raises(ClusterFault, match=r"has only 3\.0 MB left, 256 MB are needed"):
        control.up(settings, None, lambda _: None)
    assert processes.find(settings.data) == {}


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    settings = settings_in(tmp_path, 'data = "file/data"')
    with pytest.raises(ClusterFault, match="file/data cannot be made: Not a directory"):
        control.up(settings, None, lambda _: None)


def test_a_missing_java_is_told_with_what_to_install(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, '[embedded]\njava = "/nowhere/java"')
    with pytest.raises(ClusterFault, match="/nowhere/java cannot be run") as error:
        control.up(settings, None, lambda _: None)
    assert "Install Java 17" in error.value.hint
    assert processes.find(settings.data) == {}
