"""Screenshots of the page of `trajformer view` for the documentation, in six states.

    python tools/page_screenshots.py --out docs/images

Simulates scenes, forecasts them with the included weights and by constant velocity, and opens
pages in headless Chromium with playwright (extra `dev`).
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from trajformer import cli

SIZE = {"width": 1240, "height": 720}
WEIGHTS = "pretrained:se2former_simulated"


class State(NamedTuple):
    """One screenshot: keys pressed in a page, and another action."""

    name: str
    page: str
    keys: Sequence[str] = ()
    theme: str = "light"
    action: Callable[[Any], None] | None = None


def run(*words: object) -> None:
    """Run a command of trajformer (RuntimeError: it failed)."""
    if cli.main([str(word) for word in words]) != 0:
        raise RuntimeError(" ".join(str(word) for word in words))


def make_pages(folder: Path, scenes: int, seed: int) -> None:
    """Write one.html (a model), two.html (two models) and joint.html (joint futures)."""
    store = folder / "simulated"
    run("synthesize", folder / "raw", "--scenes", scenes, "--seed", seed)
    run("preprocess", "argoverse2", folder / "raw", store, "--split", "val")
    model = ("--checkpoint", WEIGHTS, "--store", store)
    run("predict", *model, "--out", folder / "se2former.parquet")
    run("predict", *model, "--joint", "--out", folder / "joint.parquet")
    constant = ("--model", "constant_velocity", "--store", store)
    run("predict", *constant, "--out", folder / "constant_velocity.parquet")
    first = folder / "se2former.parquet"
    run("view", store, "--forecasts", first, "--out", folder / "one.html")
    second = folder / "constant_velocity.parquet"
    run("view", store, "--forecasts", first, second, "--out", folder / "two.html")
    run("view", store, "--forecasts", folder / "joint.parquet", "--out", folder / "joint.html")


def sort_by_error(page: Any) -> None:
    page.click("[data-column=minFDE]")
    page.click("#scenes tr >> nth=0")
    page.wait_for_timeout(300)


def choose_joint(page: Any) -> None:
    page.select_option("#modes", "0")


def show_ids(page: Any) -> None:
    page.click("#layer-ids")


STATES = (
    State("view", "one"),
    State("view_dark", "one", ["ArrowRight"] * 25, theme="dark"),
    State("view_worst", "one", action=sort_by_error),
    State("view_compare", "two", ["n"]),
    State("view_close", "one", ["l", "+", "+", "+", *["ArrowRight"] * 15], action=show_ids),
    State("view_joint", "joint", ["ArrowRight"] * 20, action=choose_joint),
)


def take(browser: Any, folder: Path, state: State, out: Path) -> Path:
    """Write one screenshot."""
    page = browser.new_page(viewport=SIZE, color_scheme=state.theme)
    page.goto((folder / f"{state.page}.html").as_uri())
    page.wait_for_selector("html[data-ready=true]", state="attached")
    for key in state.keys:
        page.keyboard.press(key)
    if state.action is not None:
        state.action(page)
    page.wait_for_timeout(500)  # a scene that a key opened
    path = out / f"{state.name}.png"
    page.screenshot(path=path)
    page.close()
    # the method keeps rare colors, such as that of the recording vehicle
    picture = Image.open(path).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    return path


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the PNG files")
    parser.add_argument("--scenes", type=int, default=40, help="simulated scenes")
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        folder = Path(name)
        make_pages(folder, args.scenes, args.seed)
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for state in STATES:
            print(take(browser, folder, state, args.out))
        browser.close()


if __name__ == "__main__":
    main()
