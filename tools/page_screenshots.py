"""Screenshots of the page of `trajformer view` and of a report for the documentation.

    python tools/page_screenshots.py --argoverse2 RAW --eth-ucy RAW --out docs/images

Forecasts real scenes (RAW: folders in the official layouts) and simulated ones with the included
weights and by constant velocity, and opens pages in headless Chromium with playwright (extra
`dev`). Without a folder, its pictures are left out.
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
REPORT_SIZE = {"width": 1040, "height": 1515}
# sections of the report that a picture has no space for
LEFT_OUT = ("scored", "metrics", "breakdowns", "calibration", "details")
WEIGHTS = "pretrained:se2former_simulated"
CROWD_WEIGHTS = "pretrained:crowd_eth_ucy/zara1"
CROWD_SPLIT = "zara1_test"
CROWD_SCENES = 60
NUM_EXACT_COLORS = 96


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
    run("report", second, first, "--store", store, "--out", folder / "report.html")


def make_real_pages(folder: Path, argoverse2: Path | None, eth_ucy: Path | None) -> None:
    """Write argoverse2.html, attention.html and crowd.html, of the data sets that are given."""
    if argoverse2 is not None:
        store = folder / "argoverse2"
        run("preprocess", "argoverse2", argoverse2, store, "--split", "val")
        forecasts = folder / "real" / "se2former.parquet"
        forecasts.parent.mkdir()
        run("predict", "--checkpoint", WEIGHTS, "--store", store, "--out", forecasts)
        run("view", store, "--forecasts", forecasts, "--out", folder / "argoverse2.html")
        run("view", store, "--checkpoint", WEIGHTS, "--out", folder / "attention.html")
    if eth_ucy is not None:
        store = folder / "eth_ucy"
        run("preprocess", "eth_ucy", eth_ucy, store, "--split", CROWD_SPLIT)
        forecasts = folder / "crowd.parquet"
        words = ("--checkpoint", CROWD_WEIGHTS, "--store", store, "--split", CROWD_SPLIT)
        run("predict", *words, "--out", forecasts)
        choice = ("--forecasts", forecasts, "--random", CROWD_SCENES)
        run("view", store, *choice, "--out", folder / "crowd.html")


def sort_by_error(page: Any) -> None:
    page.click("[data-column=minFDE]")
    page.click("#scenes tr >> nth=0")
    page.wait_for_timeout(300)


def choose_joint(page: Any) -> None:
    page.select_option("#modes", "0")


def show_attention(page: Any) -> None:
    page.locator("#attention-box").scroll_into_view_if_needed()


def show_ids(page: Any) -> None:
    page.click("#layer-ids")


def most_agents(page: Any) -> None:
    """Open the scene with the most agents, and show the most probable modes."""
    count = page.locator("#scenes tr").count()
    details = [page.locator("#scenes .detail").nth(row).inner_text() for row in range(count)]
    targets = [
        int(text.split(" targets")[0].split()[-1]) if "targets" in text else 1 for text in details
    ]
    page.locator("#scenes tr").nth(targets.index(max(targets))).click()
    page.wait_for_timeout(300)
    page.select_option("#modes", "likely")
    for _ in range(2):
        page.keyboard.press("ArrowRight")


STATES = (
    State("view", "argoverse2", ["n"]),
    State("view_dark", "argoverse2", ["n", "n", *["ArrowRight"] * 25], theme="dark"),
    State("view_attention", "attention", ["n", "n"], action=show_attention),
    State("view_crowd", "crowd", action=most_agents),
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
        if key == "n":
            page.wait_for_timeout(500)  # until the next scene is open
    if state.action is not None:
        state.action(page)
    page.wait_for_timeout(500)  # a scene that a key opened
    path = out / f"{state.name}.png"
    page.screenshot(path=path)
    page.close()
    with_few_colors(Image.open(path).convert("RGB")).save(path, optimize=True)
    return path


def take_report(browser: Any, folder: Path, out: Path) -> Path:
    """Write a screenshot of parts of the report."""
    page = browser.new_page(viewport=REPORT_SIZE, color_scheme="light")
    page.goto((folder / "report.html").as_uri())
    hidden = [f"#{name}" for name in LEFT_OUT] + ["main details", "main .scroll"]
    page.locator(", ".join(hidden)).evaluate_all("parts => parts.forEach(part => part.remove())")
    path = out / "report.png"
    page.screenshot(path=path)
    page.close()
    with_few_colors(Image.open(path).convert("RGB")).save(path, optimize=True)
    return path


def with_few_colors(picture: Image.Image) -> Image.Image:
    """The picture with 256 colors: the most frequent ones unchanged, such as the colors of panels.

    The others are chosen to keep rare colors, such as the color of the recording vehicle.
    """
    counts = picture.getcolors(picture.width * picture.height) or []
    frequent = [color for _, color in sorted(counts, reverse=True)[:NUM_EXACT_COLORS]]
    others = picture.quantize(256 - len(frequent), Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    exact = [value for color in frequent for value in color]
    palette.putpalette(exact + others[: 3 * (256 - len(frequent))])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the PNG files")
    parser.add_argument("--argoverse2", type=Path, help="raw folder with a split val")
    parser.add_argument("--eth-ucy", type=Path, help="raw folder")
    parser.add_argument("--scenes", type=int, default=40, help="simulated scenes")
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        folder = Path(name)
        make_pages(folder, args.scenes, args.seed)
        make_real_pages(folder, args.argoverse2, args.eth_ucy)
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for state in STATES:
            if (folder / f"{state.page}.html").exists():
                print(take(browser, folder, state, args.out))
        print(take_report(browser, folder, args.out))
        browser.close()


if __name__ == "__main__":
    main()
