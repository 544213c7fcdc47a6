from __future__ import annotations

from hybridgen.text.tool_calls.text_feed import TextFeed


def test_what_was_read_is_dropped_once_it_is_half_of_the_text() -> None:
    feed = TextFeed()
    feed.push("0123456789")
    feed.position = 4
    feed.forget()
    assert (feed.text, feed.position) == ("0123456789", 4)
    feed.position = 5
    feed.forget()
    assert (feed.text, feed.position) == ("56789", 0)


def test_a_stream_that_is_read_to_its_end_leaves_nothing() -> None:
    feed = TextFeed()
    for _ in range(3):
        feed.push("text")
        feed.position = len(feed.text)
        feed.forget()
        assert feed.text == ""
