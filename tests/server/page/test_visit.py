"""From a first visit to a picture, and back to it: what is seen, kept, stopped and tried again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from served import Client, opened, served
from visits import Visits, create, expect, large, set_option

from smalti.server import events

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.browser

BYTES_MAX = 300 << 10
"""Of all that is loaded before the page can be used, not compressed."""
MANY = 100
"""Steps of a picture that takes long enough to be looked at, and stopped."""

NOTE_WHAT_IS_SHOWN = """() => {
    window.told = [];
    window.previewed = [];
    new MutationObserver(() => {
        const text = document.querySelector(".stage .progress")?.textContent;
        if (text) told.push(text);
    }).observe(document.body, { subtree: true, childList: true, characterData: true });
    document.addEventListener("load", ({ target }) => {
        if (target.alt === "What it looks like so far" && !previewed.includes(target.naturalWidth))
            previewed.push(target.naturalWidth);
    }, true);
}"""
"""What is only looked at now and then, on a busy computer, a page shows when nobody looks."""


def test_a_first_visit_ends_in_a_picture_that_was_seen_coming(visits: Visits, client: Client
                                                              ) -> None:
    page = visits.open()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("a red apple")
    expect(page.get_by_text("Your first picture is one click away")).to_be_visible()
    set_option(page, "Steps", "Steps", str(MANY))
    page.evaluate(NOTE_WHAT_IS_SHOWN)
    create(page).click()
    expect(large(page)).to_be_visible()
    told, previewed = page.evaluate("() => [window.told, window.previewed]")
    assert any(re.search(rf"Step \d+ of {MANY}", each) for each in told) and previewed == [16]
    assert large(page).evaluate("(each) => each.decode().then(() => each.naturalWidth)") == 256
    expect(page.get_by_role("region", name="Gallery").locator("img")).to_have_count(1)
    assert client.get("/api/pictures").json["pictures"][0]["prompt"] == "a red apple"


def test_what_is_being_written_stays_when_more_becomes_known(visits: Visits) -> None:
    page = visits.open()
    expect(create(page)).to_be_enabled()
    page.get_by_role("button", name=re.compile("^Steps")).click()
    steps = page.get_by_role("dialog").get_by_label("Steps", exact=True)
    steps.fill("7")
    page.evaluate("""async () => {
        const { about } = await import("/page/state.js");
        about.value = { ...about.value };
        await new Promise(requestAnimationFrame);
    }""")
    expect(steps).to_have_value("7")
    page.keyboard.press("Tab")
    expect(page.get_by_title("Steps: 7")).to_have_count(1)


def test_a_picture_is_stopped_by_one_key(visits: Visits, client: Client) -> None:
    page = visits.open()
    set_option(page, "Steps", "Steps", str(MANY * 10))  # some that a busy computer cannot end
    create(page).click()
    expect(page.locator(".stage .progress")).to_contain_text("Step")
    page.keyboard.press("Escape")
    expect(page.locator(".stage .progress")).to_have_count(0)
    assert client.get("/api/jobs?limit=1").json["jobs"][0]["state"] == "cancelled"


def test_what_was_written_and_chosen_is_there_after_a_reload_and_in_another_tab(
        visits: Visits) -> None:
    page = visits.open()
    page.get_by_label("Prompt", exact=True).fill("a blue (bird:1.3)")
    set_option(page, "Steps", "Steps", "3")
    page.reload()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("a blue (bird:1.3)")
    expect(page.get_by_role("button", name="Steps: 3")).to_be_visible()
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.get_by_label("Prompt", exact=True)).to_have_value("a blue (bird:1.3)")
    page.get_by_label("Prompt", exact=True).fill("a green tree")
    expect(other.get_by_label("Prompt", exact=True)).to_have_value("a green tree")


def test_two_visitors_see_the_same_queue_and_gallery(visits: Visits, client: Client) -> None:
    one, other = visits.open(), visits.open()
    client.post("/api/jobs/pause")
    one.get_by_label("Prompt", exact=True).fill("a yellow sun")
    set_option(one, "Steps", "Steps", "3")
    create(one).click()
    expect(other.get_by_role("region", name="Queue")).to_contain_text("a yellow sun")
    client.post("/api/jobs/pause", {"paused": False})
    for page in one, other:
        tile = page.get_by_role("region", name="Gallery").get_by_label("a yellow sun")
        expect(tile).to_have_count(1)
        expect(page.get_by_role("region", name="Queue")).not_to_contain_text("a yellow sun")


def test_a_job_that_fails_says_why_and_is_tried_again(visits: Visits, client: Client) -> None:
    failed = client.made(prompt="a boat", width=100, height=100)
    assert failed["state"] == "failed"
    page = visits.open()
    queue = page.get_by_role("region", name="Queue")
    expect(queue).to_contain_text(failed["error"]["message"])
    queue.get_by_role("button", name="a boat").click()
    expect(page.locator(".stage")).to_contain_text("This picture could not be made")
    queue.get_by_role("button", name="Try again").click()
    expect(queue.get_by_role("button", name="Try again")).to_have_count(1)
    assert [each["state"] for each in client.get("/api/jobs?state=failed").json["jobs"]] == [
        "failed"] * 2


def test_an_answer_that_comes_after_the_event_does_not_turn_time_back(
        visits: Visits, client: Client) -> None:
    client.made(prompt="a raft", width=100, height=100)
    page = visits.open()
    raft = page.get_by_role("region", name="Queue").get_by_role("listitem").filter(
        has_text="a raft")

    def late(route: Route) -> None:
        """The answer, when events have told for long that the job has failed again."""
        answer = route.fetch()
        page.wait_for_timeout(500)
        route.fulfill(response=answer)

    page.route("**/retry", late)
    with page.expect_response("**/retry"):
        raft.get_by_role("button", name="Try again").click()
    expect(page.locator(".stage")).to_contain_text("This picture could not be made")
    expect(raft.get_by_role("button", name="Try again")).to_have_count(1)


def test_of_a_long_queue_what_comes_next_is_shown(visits: Visits, client: Client,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAITING_TOLD", 2)
    client.post("/api/jobs/pause")
    ids = [client.post("/api/jobs", {"prompt": f"boat {number}", "steps": 1}).json["id"]
           for number in range(5)]
    page = visits.open()
    queue = page.get_by_role("region", name="Queue")
    expect(queue).to_contain_text("boat 1")
    for _ in range(5):  # what the server had still to say of the jobs came after its first words
        if "and 3 more" in queue.inner_text():
            break
        page.reload()
        expect(queue).to_contain_text("boat 1")
    expect(queue).to_contain_text("and 3 more")
    client.ask("DELETE", f"/api/jobs/{ids[0]}")
    expect(queue).to_contain_text("boat 4")
    expect(queue).not_to_contain_text("more")
    for id in ids[1:]:
        client.ask("DELETE", f"/api/jobs/{id}")
    client.post("/api/jobs/pause", {"paused": False})


def test_the_keyboard_alone_makes_a_picture(visits: Visits) -> None:
    page = visits.open()

    def focus(label: str) -> None:
        """Press Tab until something is reached, as somebody without a mouse does."""
        for _ in range(60):
            if page.evaluate("""(label) => {
                const at = document.activeElement;
                const name = at.getAttribute("aria-label") ?? at.innerText ?? "";
                return name.trim().startsWith(label);
            }""", label):
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not reach {label}")

    focus("Prompt")
    page.keyboard.press("Control+a")
    page.keyboard.type("a grey cat")
    focus("Steps")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_label("Steps", exact=True).focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("4")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Steps: 4")).to_be_focused()
    page.keyboard.press("Control+Enter")
    expect(large(page)).to_have_attribute("alt", "a grey cat")


def test_the_page_is_small_and_asks_only_its_own_server(visits: Visits) -> None:
    page = visits.open()
    expect(create(page)).to_be_enabled()
    page.wait_for_load_state("load")
    sizes = page.evaluate("""() => [
        ...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource"),
    ].filter((each) => !each.name.includes("/api/"))
     .map((each) => [each.name, each.decodedBodySize])""")
    total = sum(size for _, size in sizes)
    assert total <= BYTES_MAX, sorted(sizes, key=lambda each: -each[1])
    assert {name.split("/")[2] for name, _ in sizes} == {page.url.split("/")[2]}


def test_a_server_with_a_token_asks_the_browser_for_it(
        chromium: Browser, models: Path, tmp_path: Path) -> None:
    with served(opened(tmp_path, models), token="open sesame") as client:
        from playwright.sync_api import Error

        visits = Visits(chromium, f"http://127.0.0.1:{client.port}", expected=["401"])
        with pytest.raises(Error, match="INVALID_AUTH_CREDENTIALS"):  # where nobody answers it
            visits.open()
        page = visits.open(http_credentials={"username": "me", "password": "open sesame"})
        set_option(page, "Steps", "Steps", "2")
        create(page).click()
        expect(large(page)).to_be_visible()
        for close in visits.close:
            close()
        assert not visits.problems
