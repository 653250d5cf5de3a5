"""Images, videos and clips on the page: dropped, pasted or chosen, shown, priced and sent."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from page_answers import answers, ask
from seeing_folder import AUDIO, png, save_first_qwen_vl_or_audio, tone, webm
from spaninfer_engine import Engine

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

FILES = {
    "one.png": ("image/png", png(28, 28)),
    "six.png": ("image/png", png(56, 84, 1)),
    "film.webm": ("video/webm", webm(8, 56, 28)),
    "clip.wav": ("audio/wav", tone(10)),
}


@pytest.fixture
def seeing(opened, live, seeing_engine):
    """The page of a model that takes images and videos: a token for 28 x 28 pixels."""
    return opened(live(seeing_engine))


@pytest.fixture
def hearing(opened, live, tmp_path):
    """The page of a model that takes clips: 25 tokens a second, and two around them."""
    folder = save_first_qwen_vl_or_audio(tmp_path, audio=AUDIO)
    with Engine(folder, backend="reference", weights="dummy", memory="8MiB", max_len=512) as engine:
        yield opened(live(engine))


def chosen(*names):
    """Return these files as a browser's file chooser gives them."""
    found = [(name, *FILES[name]) for name in names]
    return [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in found]


def drop(page, place: str, *names: str, folder: Path) -> None:
    """Drag files of the disk over an element, and let them fall, as the browser's user does."""
    for name in names:
        (folder / name).write_bytes(FILES[name][1])
    box = page.locator(place).bounding_box()
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    files = [str(folder / name) for name in names]
    session = page.context.new_cdp_session(page)
    for event in ("dragEnter", "dragOver", "drop"):
        data = {"items": [], "files": files, "dragOperationsMask": 1}
        session.send("Input.dispatchDragEvent", {"type": event, **at, "data": data})


PASTE = """(files) => {
  const clipboardData = new DataTransfer();
  for (const [name, type, data] of files) {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    clipboardData.items.add(new File([bytes], name, { type }));
  }
  const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
  document.getElementById("input").dispatchEvent(event);
}"""


def paste(page, *names: str) -> None:
    """Paste files, as from a file manager: no script may put those on the clipboard itself."""
    files = [[name, FILES[name][0], base64.b64encode(FILES[name][1]).decode()] for name in names]
    page.evaluate(PASTE, files)


COPY = """async (data) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const png = new Blob([bytes], { type: "image/png" });
  await navigator.clipboard.write([new ClipboardItem({ "image/png": png })]);
}"""


def is_loaded(medium) -> bool:
    """Return whether the browser could read what an element shows or plays."""
    return medium.evaluate(
        """(it) => it.complete ?? new Promise((done) => {
          if (it.readyState > 0 || it.error) return done(!it.error);
          it.addEventListener("loadedmetadata", () => done(true));
          it.addEventListener("error", () => done(false));
        })"""
    )


@pytest.mark.parametrize("place", ["#chat", "#input", "#settings"])
def test_files_that_are_dropped_anywhere_are_attached_and_priced(seeing, tmp_path, place):
    drop(seeing, place, "one.png", "six.png", "film.webm", folder=tmp_path)

    shown = seeing.locator("#attachments figure")
    expect(shown.locator("figcaption")).to_have_text(["1 token", "6 tokens", "8 tokens"])
    assert [each.get_attribute("aria-label") for each in shown.locator("video").all()] == [
        "attached video 3"
    ]
    assert all(is_loaded(each) for each in shown.locator("img, video").all())
    assert seeing.locator("#form.dropping").count() == 0


def test_a_picture_of_the_clipboard_is_attached_by_control_v(seeing):
    seeing.context.grant_permissions(["clipboard-read", "clipboard-write"])
    seeing.evaluate(COPY, base64.b64encode(FILES["six.png"][1]).decode())

    seeing.press("#input", "Control+v")

    expect(seeing.locator("#attachments figcaption")).to_have_text(["6 tokens"])


def test_text_is_pasted_and_dragged_as_ever(seeing):
    seeing.context.grant_permissions(["clipboard-read", "clipboard-write"])
    seeing.evaluate("navigator.clipboard.writeText('Hello')")

    seeing.press("#input", "Control+v")

    assert seeing.input_value("#input") == "Hello"
    prevented = seeing.evaluate(
        """() => {
          const dataTransfer = new DataTransfer();
          dataTransfer.setData("text/plain", "there");
          const event = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
          return !document.getElementById("input").dispatchEvent(event);
        }"""
    )
    assert not prevented


def test_pasted_files_are_sent_answered_and_still_priced_after_a_reload(seeing):
    paste(seeing, "six.png", "film.webm")
    seeing.fill("[name=max_tokens]", "4")
    with seeing.expect_request("**/v1/chat/completions") as asked:
        ask(seeing, "What is this?")
    seeing.wait_for_selector(".assistant .note, .error")

    image, video, text = asked.value.post_data_json["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert video["video_url"]["url"].startswith("data:video/webm;base64,")
    assert text == {"type": "text", "text": "What is this?"}
    assert seeing.locator(".error").count() == 0
    assert seeing.locator("#attachments").is_hidden()
    for _ in range(2):
        expect(seeing.locator(".user figcaption")).to_have_text(["6 tokens", "8 tokens"])
        assert all(is_loaded(each) for each in seeing.locator(".user :is(img, video)").all())
        seeing.reload()


def test_costs_that_are_counted_after_the_question_was_sent_are_told_and_kept(seeing):
    answers(seeing, "Six.")
    held = []
    seeing.route("**/tokenize", lambda route: held.append(route))
    paste(seeing, "six.png")
    expect(seeing.locator("#attachments img")).to_be_visible()
    ask(seeing, "How many?")
    seeing.wait_for_selector(".assistant .note")
    assert seeing.locator(".user figcaption").inner_text() == ""

    held[0].continue_()

    expect(seeing.locator(".user figcaption")).to_have_text("6 tokens")
    seeing.reload()
    expect(seeing.locator(".user figcaption")).to_have_text("6 tokens")


def test_a_clip_is_dropped_priced_played_and_answered(hearing, tmp_path):
    drop(hearing, "#chat", "clip.wav", folder=tmp_path)
    expect(hearing.locator("#attachments figcaption")).to_have_text("27 tokens")
    assert is_loaded(hearing.locator("#attachments audio"))
    hearing.fill("[name=max_tokens]", "4")

    with hearing.expect_request("**/v1/chat/completions") as asked:
        ask(hearing, "What do you hear?")
    hearing.wait_for_selector(".assistant .note, .error")

    clip, _ = asked.value.post_data_json["messages"][0]["content"]
    assert base64.b64decode(clip["input_audio"]["data"]) == FILES["clip.wav"][1]
    assert hearing.locator(".error").count() == 0


def test_a_file_that_cannot_be_read_is_said_before_it_is_sent(seeing):
    seeing.set_input_files(
        "#file", {"name": "no.png", "mimeType": "image/png", "buffer": b"no picture"}
    )

    expect(seeing.locator("#state")).to_contain_text("messages[0].content[0] cannot be read")
    assert seeing.locator("#attachments figcaption").inner_text() == ""


def test_a_picture_can_be_taken_away_and_comes_back_when_its_question_is_edited(seeing):
    bodies = answers(seeing, "Two.")
    seeing.set_input_files("#file", chosen("one.png", "six.png"))
    seeing.get_by_label("Remove image 1").click()
    expect(seeing.locator("#attachments figcaption")).to_have_text(["6 tokens"])
    ask(seeing, "How many?")
    seeing.wait_for_selector(".assistant .note")
    assert [part["type"] for part in bodies[0]["messages"][0]["content"]] == ["image_url", "text"]

    seeing.locator(".user >> text=Edit").click()

    expect(seeing.locator("#attachments figcaption")).to_have_text(["6 tokens"])
    assert seeing.input_value("#input") == "How many?"


def test_what_the_model_cannot_take_is_refused_by_name_and_the_rest_is_attached(seeing):
    seeing.set_input_files("#file", chosen("one.png", "clip.wav"))

    expect(seeing.locator("#state")).to_have_text(
        "clip.wav is audio/wav; this model takes image, video"
    )
    assert seeing.locator("#attachments figure").count() == 1


def test_a_model_of_text_offers_no_attachments(page):
    assert page.locator("#attach").is_hidden()
