"""The page in a real browser: headless Chromium, driven by playwright, with a page from a file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.attention import random_attention
from support.browser import View
from support.page import crowded_scene
from support.pictures import fans
from support.scenes import make_scene

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting.page.build import write_page
from trajformer.plotting.page.encode import encode_scene
from trajformer.scenes.scene import METRES, PIXELS, Scene

HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


def moved(forecasts: list[TrackForecast], metres: float) -> list[TrackForecast]:
    return [replace(one, position=one.position + metres) for one in forecasts]


def write(path: Path, scenes: list[Scene], *shifts_m: float) -> Path:
    """A page with a forecast file for each shift, which is the number of the scene times it."""
    encoded = []
    for number, scene in enumerate(scenes):
        files = [moved(fans(scene), number * shift) for shift in shifts_m]
        encoded.append(encode_scene(scene, files))
    names = [f"file {number}" for number in range(len(shifts_m))]
    write_page(path, encoded, names, "scenes")
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four scenes; errors grow with their number."""
    scenes = [make_scene(seed=number, scene_id=f"s{number}") for number in range(4)]
    return write(tmp_path_factory.mktemp("page") / "page.html", scenes, 5.0)


def test_it_opens_with_all_scenes_and_the_focal_agent(view: View, file: Path) -> None:
    view.open(file)
    assert view.text("#count") == "4 scenes"
    assert view.page.locator("#scenes tr").count() == 4
    assert view.text("#scene-title") == "s0"
    assert view.text(".agent-id") == "1000"
    assert view.page.locator(".mode").count() == 6
    assert view.page.locator("#chart path").count() == 6
    assert view.page.locator("#legend .entry").count() > 5


def test_a_telephone_has_one_column(view: View, file: Path) -> None:
    width, height = 400, 800
    view.page.set_viewport_size({"width": width, "height": height})
    view.open(file)
    assert view.page.evaluate("document.documentElement.scrollWidth") == width
    boxes = [view.page.locator(name).bounding_box() for name in ("main", "#right", "#left")]
    assert all(box["width"] == width for box in boxes)
    tops = [box["y"] for box in boxes]
    assert tops == sorted(tops)
    assert boxes[0]["height"] > height / 2
    assert view.page.evaluate("scrollY") == 0
    assert not view.page.locator("#legend").is_visible()


def test_playing_moves_agents_until_paused(view: View, file: Path) -> None:
    view.open(file)
    present = view.pixels()
    view.press("[", "[", "Space")
    view.wait("#clock", r"\+0\.[1-9]")
    view.press("Space")
    paused = view.pixels()
    assert paused != present
    assert view.pixels() == paused
    assert "Play" in view.text("#play")
    assert view.text("#phase") == "future"


def test_keys_move_in_time_and_between_scenes(view: View, file: Path) -> None:
    view.open(file)
    view.press("ArrowRight", "ArrowRight")
    assert view.text("#clock") == "+0.2 s"
    view.press("Home")
    assert view.text("#clock") == "−0.9 s"
    view.press("End")
    assert view.text("#clock") == "+1.2 s"
    view.press("0", "n")
    view.wait("#scene-title", "s1")
    assert view.text("#clock") == "0.0 s"
    light = view.pixels()
    view.press("d")
    assert view.page.locator("html").get_attribute("data-theme") == "dark"
    assert view.pixels() != light


def test_a_click_selects_the_agent_under_the_pointer(view: View, file: Path) -> None:
    view.open(file, "#s2/AV")
    assert view.text("#scene-title") == "s2"
    assert view.text(".agent-id") == "AV"
    # a followed agent is in the middle of the canvas
    view.press("l")
    view.press("Escape")
    assert "Click an agent" in view.text("#agent")
    view.page.locator("#canvas").click()
    assert view.text(".agent-id") == "AV"
    assert view.page.evaluate("location.hash") == "#s2/AV"


@pytest.mark.parametrize(("unit", "direction"), [(METRES, -1), (PIXELS, 1)])
def test_y_points_up_in_metres_and_down_in_pixels(
    view: View, tmp_path: Path, unit: str, direction: int
) -> None:
    times = np.arange(20) * 0.1
    tracks = [
        pd.DataFrame({"object_id": name, "timestamp": times, "x": 0.0, "y": y})
        for name, y in (("first", 0.0), ("second", 20.0))
    ]
    scene = replace(Scene.from_tracks(pd.concat(tracks)), unit=unit)
    write_page(tmp_path / "page.html", [encode_scene(scene, [])], [], "scenes")
    view.open(tmp_path / "page.html", f"#{scene.scene_id}/first")
    view.press("l")
    box = view.page.locator("#canvas").bounding_box()
    middle_x, middle_y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    found = set()
    for away in range(20, int(box["height"] / 2) - 60, 20):
        for sign in (-1, 1):
            view.page.mouse.click(middle_x, middle_y + sign * away)
            if "second" in view.text("#agent"):
                found.add(sign)
    assert found == {direction}


def test_scenes_are_sorted_by_error_and_filtered(view: View, file: Path) -> None:
    view.open(file)
    view.page.click("[data-column=minFDE]")
    errors = [float(text) for text in view.texts("#scenes td:last-child")]
    assert errors == sorted(errors, reverse=True)
    view.page.click("[data-column=minFDE]")
    assert [float(text) for text in view.texts("#scenes td:last-child")] == errors[::-1]
    view.page.fill("#error", str(errors[1] - 0.01))
    assert view.text("#count") == "2 of 4 scenes"
    view.page.fill("#error", "")
    view.page.fill("#search", "s3")
    assert view.texts(".scene-name") == ["s3"]


def test_zoom_drag_and_layers_change_the_picture(view: View, file: Path) -> None:
    view.open(file)
    pictures = [view.pixels()]
    view.press("-", "-", "-", "-")
    pictures.append(view.pixels())
    view.page.mouse.move(600, 300)
    view.page.mouse.down()
    view.page.mouse.move(650, 350)
    view.page.mouse.up()
    pictures.append(view.pixels())
    view.page.click("#layer-lanes")
    pictures.append(view.pixels())
    view.page.click("#layer-forecasts")
    pictures.append(view.pixels())
    assert len(set(pictures)) == len(pictures)


def test_forecast_files_can_be_switched_and_joint_futures_chosen(
    view: View, tmp_path: Path
) -> None:
    scenes = [make_scene(scene_id="s0"), make_scene(seed=1, scene_id="s1")]
    view.open(write(tmp_path / "page.html", scenes, 0.0, 3.0), "#s1")
    assert view.texts("#columns th") == ["scene", "FDE A", "FDE B", "B − A"]
    assert view.page.locator("#chart path").count() == 2
    both = view.pixels()
    view.page.click("#files input >> nth=1")
    first = view.pixels()
    assert first != both
    assert view.page.locator("#chart path").count() == 1
    names = view.texts("#modes option")
    assert names[3].startswith("joint future 1 (0.")
    view.page.select_option("#modes", "0")
    assert view.pixels() != first


@pytest.fixture(scope="module")
def attention_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scene with attention of the first two agents."""
    scene = make_scene(scene_id="s0")
    path = tmp_path_factory.mktemp("page") / "attention.html"
    write_page(path, [encode_scene(scene, [fans(scene)], random_attention(scene))], ["a"], "one")
    return path


def test_a_click_shows_the_attention_of_an_agent(view: View, attention_file: Path) -> None:
    view.open(attention_file, "#s0/1000")
    view.press("l")  # a followed agent is in the middle of the canvas
    view.press("Escape")
    without = view.pixels()
    view.page.locator("#canvas").click()
    assert view.text(".agent-id") == "1000"
    shown = view.pixels()
    assert shown != without
    shares = [float(text.removesuffix(" %")) for text in view.texts("#attention-rows .share")]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)
    assert view.text("#legend").count("of the attention") == 2
    # hidden, and shown again
    view.press("a")
    hidden = view.pixels()
    assert hidden != shown
    assert view.texts("#attention-rows .share") == []
    view.press("a")
    assert view.pixels() != hidden
    assert len(view.texts("#attention-rows .share")) == 5


def test_layers_and_heads_of_attention_can_be_chosen(view: View, attention_file: Path) -> None:
    view.open(attention_file, "#s0/1001")
    layer = view.page.locator("#attention-layer")
    head = view.page.locator("#attention-head")
    assert view.texts("#attention-head option") == ["mean over heads", "head 1", "head 2", "head 3"]
    pictures = [view.pixels()]
    head.select_option("2")
    pictures.append(view.pixels())
    view.page.locator("#canvas").focus()
    view.press("h")
    assert head.input_value() == "3"
    pictures.append(view.pixels())
    assert layer.input_value() == "1"
    view.press(",")
    assert layer.input_value() == "0"
    pictures.append(view.pixels())
    assert len(set(pictures)) == len(pictures)
    view.press("h")
    assert head.input_value() == "0"
    # an agent that the model did not forecast
    view.press("Escape")
    assert view.page.locator("#attention-choices").is_hidden()


def test_hostile_names_are_shown_as_text(view: View, tmp_path: Path) -> None:
    scene = make_scene()
    scene = replace(scene, city=HOSTILE, agent_id=(HOSTILE, "x" * 200, *scene.agent_id[2:]))
    path = tmp_path / "page.html"
    write_page(path, [encode_scene(scene, [fans(scene)])], [HOSTILE], HOSTILE)
    view.open(path)
    view.page.click("#layer-ids")
    view.press("End")
    assert view.text("#title") == HOSTILE
    assert view.page.locator(".agent-id").get_attribute("title") == HOSTILE
    assert view.page.title() != "run"
    assert view.page.locator("img").count() == 0
    width = view.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 1200


def test_code_that_is_added_to_the_page_does_not_run(view: View, file: Path) -> None:
    view.open(file)
    view.page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "document.title = 'run'";
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "https://example.org/x.png";
        document.body.append(image);
    }""")
    view.page.locator("img").wait_for(state="attached")
    assert view.page.title() != "run"
    assert all("Content Security Policy" in message for message in view.messages)
    assert len(view.messages) >= 2
    # the browser reports the blocked image also as a request
    view.messages.clear()
    view.requests.clear()


def test_a_thousand_agents_and_five_thousand_lanes_play(view: View, tmp_path: Path) -> None:
    view.open(write(tmp_path / "page.html", [crowded_scene()], 0.0))
    view.press("Home", "]", "]", "Space")
    view.wait("#clock", "−[1-3]")
    view.press("Space", "n", "Escape")
    assert "Click an agent" in view.text("#agent")
