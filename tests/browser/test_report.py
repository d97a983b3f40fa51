r"""Reports in a real browser: from disk, on a phone, in the dark, sorted, and read aloud."""

import pytest

from tests.report import making

pytestmark = pytest.mark.browser

NAMES = making.NAMES
PHONE = 390

WIDTHS = """() => [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"""

BEYOND = """() => [...document.querySelectorAll("main *")].filter(each =>
    !each.closest("svg") && !each.parentElement.closest(".scroll, pre")
    && each.getBoundingClientRect().right > innerWidth + 1)
    .map(each => each.outerHTML.slice(0, 80))"""

PICTURES = """() => [...document.querySelectorAll("svg, img")].map(each => ({
    role: each.getAttribute("role"),
    alt: document.getElementById(each.getAttribute("aria-labelledby"))?.textContent ?? "",
    inside: each.contains(document.getElementById(each.getAttribute("aria-labelledby"))),
    width: each.getBoundingClientRect().width,
    height: each.getBoundingClientRect().height}))"""

COLOURS = """() => { const style = getComputedStyle(document.body);
    return [style.backgroundColor, style.color]; }"""

CONTRAST = """() => {
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(each => each / 255).map(each =>
        each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
        .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = each => { for (; each; each = each.parentElement) {
        const found = parse(getComputedStyle(each).backgroundColor);
        if (found.length < 4 || found[3] > 0.5) return found; } return [255, 255, 255]; };
    return [...document.querySelectorAll("main *")].filter(each =>
        [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
        .filter(each => each.getClientRects().length && !each.closest("svg title"))
        .map(each => { const style = getComputedStyle(each);
            const own = parse(each.closest("svg") ? style.fill : style.color);
            const [a, b] = [light(own), light(behind(each.closest("svg")?.parentElement ?? each))];
            return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05),
                    each.textContent.slice(0, 40)]; })
        .filter(([ratio]) => ratio < 4.5); }"""


def column(table, place):
    return [
        cells.nth(place).inner_text()
        for cells in (row.locator("th, td") for row in table.locator("tbody tr").all())
    ]


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_from_disk_and_can_be_read_on_a_phone(opened, artifacts, name):
    page = opened(name, width=PHONE)
    assert "limbeck" in page.title()
    assert page.locator("h1").count() == 1
    whole, body, window = page.evaluate(WIDTHS)
    assert window == PHONE
    assert max(whole, body) <= window
    assert page.evaluate(BEYOND) == []
    page.screenshot(path=artifacts / f"{name}-phone.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_words_stand_out_in_light_and_dark(opened, artifacts, name, scheme):
    page = opened(name, scheme=scheme)
    page.screenshot(path=artifacts / f"{name}-{scheme}.png", full_page=True)
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_there_and_described(opened, name):
    found = opened(name).evaluate(PICTURES)
    assert found
    for each in found:
        assert each["role"] == "img"
        assert each["inside"]
        assert len(each["alt"]) > 15
        assert each["width"] > 20
        assert each["height"] > 20


def test_the_button_switches_and_is_remembered(opened):
    page = opened("logz")
    light = page.evaluate(COLOURS)
    button = page.get_by_role("button", name="Switch to dark colours")
    button.click()
    dark = page.evaluate(COLOURS)
    assert dark != light
    page.reload()
    assert page.evaluate(COLOURS) == dark
    page.get_by_role("button", name="Switch to light colours").click()
    assert page.evaluate(COLOURS) == light


def test_the_systems_choice_is_followed_and_can_be_overruled(opened):
    bright = opened("logz").evaluate(COLOURS)
    page = opened("logz", scheme="dark")
    assert page.evaluate(COLOURS) != bright
    page.get_by_role("button", name="Switch to light colours").click()
    assert page.evaluate(COLOURS) == bright


def test_on_paper_it_is_light(opened):
    page = opened("logz", scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(COLOURS)[0] == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()


def test_numbers_are_sorted_as_numbers(opened):
    page = opened("compress")
    table = page.locator("table", has=page.locator("caption", has_text="Largest disagreements"))
    before = column(table, 0)
    numbers = sorted(map(int, before))
    assert list(map(int, before)) != numbers
    head = table.locator("thead th").nth(0)
    head.get_by_role("button").click()
    assert list(map(int, column(table, 0))) == numbers
    assert head.get_attribute("aria-sort") == "ascending"
    head.get_by_role("button").click()
    assert list(map(int, column(table, 0))) == numbers[::-1]
    assert head.get_attribute("aria-sort") == "descending"
    other = table.locator("thead th").nth(1)
    other.get_by_role("button").click()
    sizes = list(map(float, column(table, 1)))
    assert sizes == sorted(sizes)
    assert head.get_attribute("aria-sort") is None
    assert sorted(column(table, 0)) == sorted(before)  # rows stay whole


def test_words_are_sorted_as_words_with_the_keyboard(opened):
    page = opened("logz")
    table = page.locator("table", has=page.locator("caption", has_text="Estimates of log Z"))
    table.locator("thead th").nth(0).get_by_role("button").focus()
    page.keyboard.press("Enter")
    names = column(table, 0)
    assert names == sorted(names)
    assert len(names) == 3


def test_every_link_of_the_contents_leads_to_its_section(opened):
    page = opened("normalize")
    for link in page.locator("nav.contents a").all():
        target = page.locator(link.get_attribute("href"))
        assert target.inner_text() == link.inner_text()


def test_wide_tables_scroll_in_their_own_box(opened):
    page = opened("compress", width=PHONE)
    boxes = page.locator(".scroll").evaluate_all(
        "all => all.map(each => [each.scrollWidth > each.clientWidth, each.tabIndex])"
    )
    assert any(wide for wide, _ in boxes)
    assert all(index == 0 for _, index in boxes)  # so that the keyboard can move them


def test_without_scripts_all_is_there(browser, pages):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["compress"].resolve().as_uri())
    assert page.locator("table").count() > 3
    # calibration, disagreement, a sheet of examples, subgroups, learning
    assert page.locator("svg[role=img]").count() == 5
    assert not page.locator("#theme").is_visible()
    context.close()
