"""The playground when an answer fails: a head can be asked for again, and an error that comes too late says nothing."""

from typing import Any

import pytest
from browsers import in_browser
from serving.playground import TEXT, Tab
from serving.server import Running
from serving.test_playground_kinds import others  # noqa: F401 - a fixture

FAULT: dict[str, Any] = {"status": 500, "json": {"error": {"message": "planted", "type": "server_error"}}}


@in_browser
def test_a_head_that_was_refused_can_be_asked_for_again(browser: Any, server: Running) -> None:
    tab = Tab(browser, server.url)
    tab.use("gpt", TEXT)
    page, failed = tab.page, list[str]()
    page.wait_for_selector("#map[data-map='0 0']")

    def answer(route: Any) -> None:
        if '"head":1' in route.request.post_data and not failed:
            failed.append(route.request.url)
            route.fulfill(**FAULT)
        else:
            route.continue_()

    page.route("**/v1/heddle/attention", answer)
    page.click("#grid [data-map='0 1']")
    page.locator("#map-name", has_text="planted").wait_for()
    page.click("#grid [data-map='0 1']")
    page.wait_for_selector("#map[data-map='0 1']")
    tab.context.close()


@in_browser
def test_an_error_about_experts_that_comes_too_late_says_nothing(browser: Any, request: pytest.FixtureRequest) -> None:
    server, _ = request.getfixturevalue("others")
    tab = Tab(browser, server.url, None)
    tab.idle()
    page, held = tab.page, list[Any]()

    def answer(route: Any) -> None:
        if '"what":"experts"' in route.request.post_data and not held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/v1/heddle/explain", answer)
    for text in (TEXT, TEXT[:-1]):
        page.select_option("#model", "experts")
        page.fill("#prompt", text)
        page.click("#look")
        page.wait_for_timeout(1000)
    page.wait_for_selector("#routers canvas")
    held[0].fulfill(**FAULT)
    page.wait_for_timeout(300)
    assert page.locator("#routers canvas").count() and "planted" not in page.locator("#routers").inner_text()
    tab.context.close()
