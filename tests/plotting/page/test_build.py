"""The file: one script with its hash in the policy, inert data, and the command line."""

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.cli import run
from support.models import build, shallow_config
from support.page import block, index_of, unpack
from support.pictures import fans
from support.scenes import make_scene

from trajformer.evaluation.forecast_file import write_forecasts
from trajformer.plotting.page.build import joined_script, module_order, source_folder, write_page
from trajformer.plotting.page.encode import encode_scene
from trajformer.recipes.checkpoint import write_checkpoint
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.spec import DataSpec

HOSTILE = "</script><script>alert('1')</script>\"<img src=x onerror=alert(1)>&amp;{{"


def page_of(folder: Path, *scenes: Scene, title: str = "scenes") -> str:
    path = folder / "page.html"
    encoded = [encode_scene(scene, [fans(scene)]) for scene in scenes]
    size = write_page(path, encoded, ["a"], title)
    assert size == path.stat().st_size
    return path.read_text(encoding="utf-8")


def write_store(folder: Path, scenes: list[Scene]) -> None:
    write_shard(shard_path(folder, "val", 0), scenes, ShardInfo("synthetic", "val"))


def inline(html: str, tag: str) -> str:
    """Content of the only element of this name without attributes."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return content


@pytest.mark.parametrize(("tag", "directive"), [("script", "script-src"), ("style", "style-src")])
def test_the_policy_allows_only_the_script_and_style_of_the_page(
    tmp_path: Path, tag: str, directive: str
) -> None:
    html = page_of(tmp_path, make_scene())
    digest = hashlib.sha256(inline(html, tag).encode()).digest()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    rules = [rule.strip() for rule in policy.split(";")]
    assert "default-src 'none'" in rules
    assert f"{directive} 'sha256-{base64.b64encode(digest).decode()}'" in rules
    assert "unsafe" not in policy


def test_hostile_names_are_only_in_encoded_data(tmp_path: Path) -> None:
    scene = make_scene()
    ids = (HOSTILE, "x" * 200, *scene.agent_id[2:])
    scene = replace(scene, agent_id=ids, city=HOSTILE)
    html = page_of(tmp_path, scene, title=HOSTILE)
    assert "alert" not in html
    assert html.count("<script>") == 1
    assert index_of(html)["title"] == HOSTILE
    assert index_of(html)["scenes"][0]["city"] == HOSTILE


def test_the_page_names_no_address(tmp_path: Path) -> None:
    html = page_of(tmp_path, make_scene())
    addresses = set(re.findall(r"https?://[^\s\"']*", html))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which is never requested


def test_every_module_is_in_the_script_after_those_that_it_imports() -> None:
    order = module_order()
    modules = {item.name for item in source_folder().iterdir() if item.name.endswith(".js")}
    assert {f"{name}.js" for name in order} == modules
    assert order[-1] == "main"
    script = joined_script()
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    assert "</script" not in script
    assert "innerHTML" not in script


def test_pages_are_small_and_equal_for_equal_scenes(tmp_path: Path) -> None:
    first = page_of(tmp_path, make_scene())
    assert first == page_of(tmp_path, make_scene())
    assert len(first) < 150_000


def test_the_command_writes_scenes_with_several_forecasts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scenes = [make_scene(seed=seed) for seed in (0, 1)]
    write_store(Path("store"), scenes)
    spec = DataSpec.of(scenes[0])
    write_forecasts("a.parquet", [one for scene in scenes for one in fans(scene)], spec)
    write_forecasts("b.parquet", fans(scenes[1]), spec)
    words = "view store --forecasts a.parquet b.parquet --out page.html"
    assert run(*words.split()) == 0
    assert "page.html: 2 scenes" in capsys.readouterr().out
    index = index_of(Path("page.html").read_text(encoding="utf-8"))
    assert index["files"] == ["a", "b"]
    assert [len(scene["errors"]) for scene in index["scenes"]] == [2, 2]
    assert index["scenes"][0]["errors"][1] is None


@pytest.mark.parametrize(("name", "has_attention"), [("mmtransformer", True), ("gatformer", False)])
def test_a_checkpoint_forecasts_the_scenes_with_its_attention(
    name: str,
    has_attention: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_store(Path("store"), [make_scene()])
    config = shallow_config(name)
    Path("run").mkdir()
    weights = build(config).state_dict()
    write_checkpoint(Path("run/best.ckpt"), TrainConfig(model=config), weights)
    model = "--checkpoint run/best.ckpt --store store --split val"
    assert run(*f"predict {model} --out a.parquet".split()) == 0
    words = "view store --split val --forecasts a.parquet --checkpoint run/best.ckpt"
    assert run(*words.split(), "--out", "page.html") == 0
    note = "without attention: it has no recorded attention from targets to agents and lanes"
    assert (note in capsys.readouterr().err) is not has_attention

    html = Path("page.html").read_text(encoding="utf-8")
    index = index_of(html)
    assert index["files"] == ["a", "run/best.ckpt"]
    from_file, from_checkpoint = index["scenes"][0]["errors"]
    assert from_checkpoint == pytest.approx(from_file, abs=0.002)
    header, _ = unpack(block(html, "scene-0"))
    assert (header["attention"] is not None) is has_attention


def test_the_command_needs_options_and_forecasts_that_fit(fails: Callable[..., str]) -> None:
    write_store(Path("store"), [make_scene()])
    assert "leave out --port" in fails("view", "store", "--port", "8765", "--out", "p.html")
    assert "--worst needs --forecasts" in fails("view", "store", "--worst", "1", "--out", "p.html")
    assert "no scene moon" in fails("view", "store", "--scene", "moon", "--out", "p.html")
    other = fans(replace(make_scene(), scene_id="other"))
    write_forecasts("f.parquet", other)
    assert "f.parquet: no forecast" in fails(
        "view", "store", "--split", "val", "--forecasts", "f.parquet", "--out", "p.html"
    )
    assert not Path("p.html").exists()
