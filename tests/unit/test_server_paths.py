"""Paths and ports that Triton would stumble over are refused before it starts, in one sentence."""

from __future__ import annotations

import pytest

from servinglab import assets, triton_install, triton_process
from servinglab.assets import AssetError
from servinglab.server import ServerError, TritonServer


@pytest.mark.parametrize("name", ["with space", "do$(touch pwned)x", 'quo"te', "semi;colon", "new\nline", "Jürgen"])
def test_a_path_that_a_shell_would_read_otherwise_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    repository = tmp_path / name
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text('name: "m"')
    with pytest.raises(ServerError, match="path of the model repository, .* use another folder"):
        TritonServer(repository).start()
    assert not (tmp_path / "pwned").exists()


def test_the_cache_is_looked_at_too(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVINGLAB_CACHE", str(tmp_path / "a b"))
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(ServerError, match="path of the cache, .*SERVINGLAB_CACHE"):
        TritonServer(tmp_path).start()


def test_ordinary_paths_pass(tmp_path):
    triton_install.require_plain_path(tmp_path / "a-b_c.d+e=f@g%h,i:j", "it", "no")


def test_one_port_for_two_services():
    with pytest.raises(ServerError, match="Port 45998 is given twice"):
        triton_process.choose_ports({"http": 45998, "grpc": 45998, "metrics": None})


def test_a_cache_of_nobody(monkeypatch):
    monkeypatch.setenv("SERVINGLAB_CACHE", "~nosuchuser/x")
    with pytest.raises(AssetError, match="set SERVINGLAB_CACHE"):
        assets.cache_dir()


def test_a_full_cache_is_named_and_left_clean(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(triton_install.shutil, "copy2", full)
    with pytest.raises(ServerError, match=r"Cannot write to the cache .*No space left on device.*SERVINGLAB_CACHE"):
        triton_install.backend_directory(tmp_path)
    assert not list((tmp_path / "triton").iterdir())
