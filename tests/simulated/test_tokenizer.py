"""The tokenizer adds up, gives its text back, and is quick."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vllm_launch.simulated.replies import CHARACTERS, WORDS, Reply, ReplyHashes, reply_seed
from vllm_launch.simulated.tokenizer import block_hashes, chat_tokens, token_id, tokenize

words = st.text(st.characters(exclude_categories=("Zs", "Zl", "Zp", "Cc", "Cs")), min_size=1, max_size=30)


@given(st.lists(words, max_size=20), st.lists(words, max_size=20))
def test_counts_add_up_at_word_borders(left: list[str], right: list[str]) -> None:
    a, b = " ".join(left), "".join(f" {word}" for word in right)
    assert len(tokenize(a + b)) == len(tokenize(a)) + len(tokenize(b))


@given(st.text())
def test_tokens_joined_are_the_text(text: str) -> None:
    assert "".join(tokenize(text)) == text


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_has_no_rule_of_its_own(text: str) -> None:
    assert tokenize(text) == tokenize(text + "水")[:-1]


def test_words_and_characters_are_one_token_each() -> None:
    assert len(tokenize("one two three")) == 3
    assert len(tokenize("今天天气很好")) == 6
    assert len(tokenize("word " * 100)) == 101  # the last blank stands alone
    assert len(tokenize("extraordinarily")) == 2


def test_a_chat_costs_five_tokens_a_message_and_five_more() -> None:
    assert len(chat_tokens([("user", "one two")])) == 5 + 5 + 2
    assert len(chat_tokens([("system", "a"), ("user", "b")])) == 5 + 10 + 2


def test_replies_are_made_of_whole_tokens() -> None:
    for pieces in (WORDS, CHARACTERS):
        assert len(pieces) == 128
        assert all(tokenize(piece) == [piece] for piece in pieces)


def test_ids_are_stable_and_in_range() -> None:
    assert token_id(" word", 1000) == token_id(" word", 1000)
    assert all(256 <= token_id(piece, 1000) < 1000 for piece in WORDS)


def test_hashes_chain() -> None:
    a, b = block_hashes(list("abcdefgh"), 4), block_hashes(list("abcdXfgh"), 4)
    assert a[0] == b[0]
    assert a[1] != b[1]
    assert len(block_hashes(list("abc"), 4)) == 0


def test_the_next_turn_knows_the_reply() -> None:
    first = chat_tokens([("user", "hello there my friend")])
    reply = Reply(reply_seed(0, None, b"x", 0), chinese=False)
    hashes = ReplyHashes(first, block_hashes(first, 4), 4, reply, 40)
    said = "".join(reply.piece(i) for i in range(40))
    second = chat_tokens([("user", "hello there my friend"), ("assistant", said), ("user", "and then?")])
    known = block_hashes(second, 4)
    assert list(hashes) == known[: len(hashes)]


def test_natural_lengths_spread_around_two_hundred() -> None:
    lengths = sorted(Reply(reply_seed(0, None, str(i).encode(), 0), False).natural_length() for i in range(2000))
    assert 180 < lengths[1000] < 220
    assert lengths[0] < 40
    assert lengths[-1] > 1000
