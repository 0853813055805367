"""Prompts have exactly the tokens asked for, and share exactly what they are meant to share."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailgate.exits import BadInput
from tests.support.require import need
from tests.workloads.toys import Bytes, MergesAcrossWords, NoTemplate, SplitLongWords, WordTokens
from workloads import Calibration, Plan, TokenCounter, Workload, calibrate_for, load_workload, make_plan
from workloads.prompts import Prompter
from workloads.tokens import Shape, calibrate

CLASS = {"input-tokens": {"distribution": "uniform", "min": 64, "max": 900}, "output-tokens": 8}


def workload(**keys: Any) -> Workload:
    return Workload.model_validate({"name": "w", "classes": {"a": {**CLASS, **keys}}})


def plan(counter: TokenCounter | Calibration | None, seed: int = 1, salt: str = "", **keys: Any) -> Plan:
    return make_plan(workload(**keys), seed=seed, model="m", counter=counter, salt=salt)


def counted(counter: TokenCounter, body: bytes) -> int | None:
    data = json.loads(body)
    return counter.count_messages(data["messages"]) if "messages" in data else counter.count_text(data["prompt"])


def user_text(body: bytes) -> str:
    data = json.loads(body)
    return str(data["messages"][-1]["content"] if "messages" in data else data["prompt"])


@pytest.mark.parametrize("language", ["en", "zh", "mixed"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("tokenizer", [WordTokens, SplitLongWords])
def test_the_server_counts_what_was_asked_for(tokenizer: Any, endpoint: str, language: str) -> None:
    counter = tokenizer()
    made = plan(counter, endpoint=endpoint, language=language)
    for index in range(60):
        request = made.request(index)
        assert counted(counter, request.body) == request.prompt_tokens
        assert request.prompt_tokens == made._source.design(index).input_tokens
    assert made.calibration.exact
    assert made.notes == ("prompt lengths are exact (toy)",)


@pytest.mark.parametrize("keys", [{"system-prompt-tokens": 40}, {"shared-prefix": {"tokens": 48, "groups": 3}}])
def test_shared_parts_count_towards_the_length(keys: dict[str, Any]) -> None:
    counter = WordTokens()
    made = plan(counter, **keys)
    for index in range(40):
        request = made.request(index)
        assert counted(counter, request.body) == request.prompt_tokens == made._source.design(index).input_tokens
        assert request.shared_tokens == 40 + 8 * ("shared-prefix" in keys)


@given(tokens=st.integers(1, 3000), index=st.integers(0, 2**63))
@settings(max_examples=150, deadline=None)
def test_any_length_and_any_index(tokens: int, index: int) -> None:
    shape = Shape("completions", "en")
    prompter = Prompter(CALIBRATION, seed=5)
    prompt = prompter.prompt(shape, tokens, index, request_class="a")
    least = prompter.base(shape) + 1
    assert prompt.tokens == max(tokens, least)
    assert WordTokens().count_text(prompt.text or "") == prompt.tokens


CALIBRATION = calibrate(WordTokens(), [Shape("completions", "en")])


def test_where_no_word_costs_one_token_the_designed_length_is_still_the_true_one() -> None:
    counter = Bytes()
    made = plan(counter)
    for index in range(40):
        request = made.request(index)
        asked = made._source.design(index).input_tokens
        assert counted(counter, request.body) == request.prompt_tokens
        assert request.prompt_tokens is not None
        assert asked - 3 <= request.prompt_tokens <= asked


def test_a_tokenizer_that_merges_across_words_is_found_out_and_its_error_stated() -> None:
    counter = MergesAcrossWords()
    made = plan(counter)
    assert not made.calibration.exact
    assert made.calibration.error is not None
    assert 0 < made.calibration.error < 0.1
    assert "merges across words" in made.notes[0]
    for index in range(40):
        true, asked = counted(counter, made.request(index).body), made._source.design(index).input_tokens
        assert true == pytest.approx(asked, rel=0.12), "the measured scale keeps lengths near what was asked"


def test_without_a_counter_lengths_are_words_and_that_is_said() -> None:
    made = plan(None)
    request = made.request(0)
    assert len(user_text(request.body).split()) == request.prompt_tokens
    assert "counted in words, not tokens" in made.notes[0]


def test_an_unknown_chat_template_is_said() -> None:
    made = plan(NoTemplate())
    assert not made.calibration.exact
    assert "leave out the chat template" in made.notes[0]


def test_learning_the_words_needs_few_calls_and_prompts_none() -> None:
    counter = WordTokens()
    made = plan(counter)
    assert counter.calls < 30
    before = counter.calls
    for index in range(100):
        made.request(index)
    assert counter.calls == before


def test_a_calibration_passes_through_json() -> None:
    learnt = calibrate_for(workload(language="mixed"), WordTokens())
    again = Calibration.from_dict(json.loads(json.dumps(learnt.to_dict())))
    assert again == learnt
    assert plan(again, language="mixed").bodies_sha256(50) == plan(WordTokens(), language="mixed").bodies_sha256(50)


def first_block(counter: WordTokens, text: str) -> tuple[str, ...]:
    return tuple(counter.tokens(text)[:16])


@pytest.mark.parametrize("language", ["en", "zh", "mixed"])
def test_no_two_prompts_share_their_first_block(language: str) -> None:
    counter = WordTokens()
    runs = [(1, ""), (1, "second run"), (2, "")]
    learnt = calibrate_for(workload(endpoint="completions", language=language), counter)
    blocks = [
        first_block(
            counter, user_text(plan(learnt, seed, salt, endpoint="completions", language=language).request(i).body)
        )
        for seed, salt in runs
        for i in range(1500)
    ]
    assert len(set(blocks)) == len(blocks)


def test_the_salt_changes_every_text_and_no_length() -> None:
    learnt = calibrate_for(workload(), WordTokens())
    one, two = plan(learnt, salt="a"), plan(learnt, salt="b")
    for index in range(50):
        first, second = one.request(index), two.request(index)
        assert first.body != second.body
        assert (first.prompt_tokens, first.output_tokens) == (second.prompt_tokens, second.output_tokens)


def common(one: list[str], two: list[str]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))


def test_groups_share_the_asked_tokens_and_no_more() -> None:
    counter = WordTokens()
    keys: dict[str, Any] = {"endpoint": "completions", "shared-prefix": {"tokens": 48, "groups": 3}}
    made = plan(counter, **keys)
    by_group: dict[int, list[list[str]]] = {}
    lead = len(counter.tokens("Please read this text"))
    for index in range(90):
        group = made._source.design(index).group
        assert group is not None
        by_group.setdefault(group, []).append(counter.tokens(user_text(made.request(index).body))[lead:])
    assert sorted(by_group) == [0, 1, 2]
    for group, members in by_group.items():
        shared = [common(one, two) for one, two in itertools.combinations(members, 2)]
        assert min(shared) == 48
        assert max(shared) < 48 + 8, "the eight words after the shared text differ between any two"
        other = next(texts for number, texts in by_group.items() if number != group)
        assert common(members[0], other[0]) < 8


def test_zipf_makes_the_first_group_the_most_frequent() -> None:
    shared: dict[str, Any] = {"shared-prefix": {"tokens": 16, "groups": 4, "zipf": 1.0}}
    made = plan(None, **shared)
    groups = [made._source.design(index).group for index in range(4000)]
    shares = [groups.count(number) / 4000 for number in range(4)]
    assert shares == pytest.approx([12 / 25, 6 / 25, 4 / 25, 3 / 25], abs=0.03)


def test_the_system_prompt_is_one_for_the_class() -> None:
    keys: dict[str, Any] = {"system-prompt-tokens": 30}
    made = plan(WordTokens(), **keys)
    messages = [json.loads(made.request(index).body)["messages"] for index in range(10)]
    assert {message[0]["role"] for message in messages} == {"system"}
    assert len({message[0]["content"] for message in messages}) == 1


def test_a_prompt_too_short_for_the_template_is_raised_and_that_is_said() -> None:
    keys: dict[str, Any] = {"input-tokens": 3}
    made = plan(WordTokens(), **keys)
    request = made.request(0)
    assert request.prompt_tokens == WordTokens().count_messages(json.loads(request.body)["messages"])
    assert any("meant to be shorter than" in note for note in made.notes)


@pytest.fixture(scope="module")
def bpe_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE trained on the suite's own presets, words and sources, with a chat template."""
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError:
        need(False, "the library 'tokenizers'")
        raise
    directory = tmp_path_factory.mktemp("bpe")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=["<|begin|>", "<|user|>", "<|system|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    root = Path(__file__).parents[2]
    tokenizer.train(
        [str(path) for path in [*root.glob("workloads/**/*.txt"), *root.glob("workloads/**/*.py")]], trainer
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    template = (
        "<|begin|>{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "bos_token": "<|begin|>"}))
    return directory


@pytest.mark.parametrize("name", ["chat-mixed", "interactive-and-batch", "shared-prefix", "rag-long"])
def test_exact_with_a_real_tokenizer(bpe_directory: Path, name: str) -> None:
    from workloads.tokenizer_file import TokenizerFile

    counter = TokenizerFile(bpe_directory)
    made = make_plan(load_workload(name), seed=3, model="m", counter=counter)
    assert made.calibration.exact
    for index in range(40):
        request = made.request(index)
        assert counted(counter, request.body) == request.prompt_tokens == made._source.design(index).input_tokens


def test_a_tokenizer_file_that_is_none_is_named(tmp_path: Path) -> None:
    from workloads.tokenizer_file import TokenizerFile

    with pytest.raises(BadInput, match=r"tokenizer\.json is not a file; give a tokenizer\.json or the directory"):
        TokenizerFile(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match=r"give a model's tokenizer\.json"):
        TokenizerFile(tmp_path)
