"""The page in a real browser: what it shows, that its policy lets its own style through and nothing else, and keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, open_browser
from pages import losses

from rltrace.extensions.page.data import gather
from rltrace.extensions.page.page import html_page

A = [4.0, 2.0, 1.0, 3.0, 0.5, 0.25]
B = [4.0, 2.0, 1.0, 3.5, 0.5, 1.25]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    a, b = losses(folder / "a.zarr", A), losses(folder / "b.zarr", B, noise_from=2, module="<script>net</script>")
    file = folder / "report.html"
    file.write_text(html_page(gather(a, b)), encoding="utf-8")
    return file


def test_the_verdict_and_a_curve(browser: Browser, page: Path) -> None:
    """The verdict stands on the page, and the points of the curve that it draws are the numbers that were recorded."""
    browser.open(page)
    assert browser.ask("document.querySelector('h1').innerText") == "DIVERGED op 4, step 2, cause: same-kernel"
    drawn = "[...document.querySelectorAll('#curve-0 .curve polyline.side-{0}')[0].points].map(p => [p.x, p.y])"
    for side, numbers in (("a", A), ("b", B)):
        expected = [[1000 * step / 5, 100 - 100 * (n - 0.25) / 3.75] for step, n in enumerate(numbers)]
        found = browser.ask(drawn.format(side))
        assert [x for point in found for x in point] == pytest.approx(
            [x for p in expected for x in p], rel=1e-3, abs=0.05
        )


def test_it_loads_nothing_and_nothing_is_refused(browser: Browser, page: Path) -> None:
    """One request, for the page itself; no complaint, so the style passed the policy; and it took effect."""
    browser.open(page)
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.complaints() == []
    assert browser.ask("document.scripts.length") == 0
    assert browser.ask("getComputedStyle(document.querySelector('.hidden')).position") == "absolute"


def background(browser: Browser) -> str:
    return str(browser.ask("getComputedStyle(document.body).backgroundColor"))


def test_dark_and_light(browser: Browser, page: Path) -> None:
    """As the system is set."""
    browser.open(page)
    light = background(browser)
    browser.open(page, dark=True)
    dark = background(browser)
    assert light != dark


def test_keys_open_and_close(browser: Browser, page: Path) -> None:
    """What opens, opens with Enter, and Tab goes through it all in the order of the page."""
    browser.open(page)
    focus = "document.querySelector('#curve-0 > summary').focus()"
    browser.ask(focus)
    assert browser.ask("document.getElementById('curve-0').open") is True
    browser.press("Tab", 9)
    assert browser.ask("document.activeElement.matches('#curve-0 details > summary')")
    browser.ask(focus)
    browser.press("Enter", 13)
    assert browser.ask("document.getElementById('curve-0').open") is False


@pytest.mark.parametrize("width", [320, 400, 800, 1280])
def test_it_fits(browser: Browser, page: Path, width: int) -> None:
    """No page scrolls sideways; only a table may, within itself."""
    browser.open(page, width=width)
    assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    loose = "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .hidden, svg'))"
    edges = f"{loose}.filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    assert browser.ask(edges) == []


def test_on_paper(browser: Browser, page: Path) -> None:
    """Printed, everything is open and on white, whatever the theme."""
    browser.open(page, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    shown = "document.querySelector('#curve-0 details table').getBoundingClientRect().height"
    assert browser.ask(shown) > 20
    assert background(browser) == "rgb(255, 255, 255)"
    browser.call("Emulation.setEmulatedMedia", media="")


def test_contrast(browser: Browser, page: Path) -> None:
    """Every word stands out from what is behind it: 4.5 to 1, as WCAG 2 (AA) asks for."""
    for dark in (False, True):
        browser.open(page, dark=dark)
        assert browser.ask(CONTRAST) == []


CONTRAST = """
(() => {
  const light = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(Number).map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = e => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (color !== 'rgba(0, 0, 0, 0)') return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const low = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (e.closest('title, desc, .hidden')) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(e.closest('svg') ? style.fill : style.color), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push([e.outerHTML.slice(0, 80), (a + 0.05) / (b + 0.05)]);
  }
  return low;
})()
"""
