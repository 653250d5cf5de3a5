import hashlib
import re
from random import Random

import pytest
from stories.chats import draw_chat, plain_story
from stories.plots import plots, tell

NUM_SAMPLES = 2_000
# Words that may follow themselves in good English, or whose name ends as the next word begins.
_MAY_REPEAT = {"had", "that", "can", "bye", "orange", "violet", "in", "very"}


@pytest.fixture(scope="module")
def stories():
    rng = Random("grammar")
    return [plain_story(rng) for _ in range(NUM_SAMPLES)]


@pytest.fixture(scope="module")
def chats():
    rng = Random("grammar")
    return [draw_chat(rng) for _ in range(NUM_SAMPLES)]


def test_the_same_seed_writes_the_same_text():
    rng = Random(20261121)
    digest = hashlib.sha256()

    for _ in range(300):
        digest.update(plain_story(rng).encode())
        digest.update("".join(turn.role + turn.text for turn in draw_chat(rng)).encode())

    assert digest.hexdigest()[:16] == "6015aac15f3a7ac2"


def test_articles_agree_with_the_words_that_follow(stories):
    wrong = re.compile(
        r"\b[Aa] (?:[aei]\w+|o(?!n(?:e|ce)\b)\w+)|\b[Aa]n (?![aeiouAEIOU]|hon|hour)\w+"
    )

    assert [found[0] for story in stories for found in wrong.finditer(story)] == []


def test_no_word_is_doubled(stories):
    doubled = re.compile(r"\b(\w+) \1\b")
    found = {match[1].lower() for story in stories for match in doubled.finditer(story)}

    assert found <= _MAY_REPEAT


def test_no_trace_of_a_template_is_left(stories, chats):
    answers = [turn.text for chat in chats for turn in chat]

    assert [text for text in stories + answers if re.search(r"[{}\[\]|]|  | [,.]", text)] == []


def test_every_paragraph_is_whole_sentences(stories):
    for story in stories:
        for paragraph in story.split("\n\n"):
            assert paragraph[0].isupper() or paragraph[0] == '"', paragraph


def test_turns_alternate_and_none_is_empty(chats):
    for chat in chats:
        spoken = [turn.role for turn in chat if turn.role != "system"]
        assert spoken == ["user", "assistant"] * (len(spoken) // 2)
        assert all(turn.text.strip() for turn in chat)


def test_few_stories_are_alike():
    rng = Random(3)
    stories = {tell("story", rng).text for _ in range(NUM_SAMPLES)}

    assert len(stories) == NUM_SAMPLES


@pytest.mark.parametrize("kind", ["fable", "story", "short"])
def test_each_plot_offers_several_ways_to_tell_it(kind):
    for plot in plots(kind):
        ways = 1
        for beat in plot.beats:
            ways *= len(beat)
        assert ways >= 4, plot.name
