"""A file of requests as a source: checked once from end to end, then read again in small pieces as requests are due."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from tailgate.exits import BadInput
from workloads.sources import Design, TurnDesign
from workloads.sources.azure import azure_rows
from workloads.sources.burstgpt import burstgpt_rows
from workloads.sources.pieces import BadRow, Mark, Marks, elements, lines
from workloads.sources.rows import Conversation, Parse, Row, RowError
from workloads.sources.texts import conversation_row, prompt_row, sharegpt_row
from workloads.sources.timed import timed_rows
from workloads.spec import RequestClass, TraceLabels, TraceSource

_BOM = b"\xef\xbb\xbf"
_SAMPLE = 64
_SAMPLE_CHARACTERS = 4000
_UNTOLD_ANSWER = 256  # tokens, where neither the file nor the class says; vLLM's bench has the same for its custom data
CHARACTERS_PER_TOKEN = 4.0

_CSV: dict[str, Callable[[bytes], Parse]] = {"azure": azure_rows, "burstgpt": burstgpt_rows}
_TEXTS: dict[str, Parse] = {"sharegpt": sharegpt_row, "conversations": conversation_row, "prompts": prompt_row}


class TraceFile:
    """The rows of one file, in the file's order. Raises `BadInput` naming file and line of the first fault.

    What is kept is the scan's figures and a mark for each few rows, so that memory does not grow with the file's text.
    """

    def __init__(self, path: Path, source: TraceSource) -> None:
        self.path = path
        self.source = source
        self._marks = Marks()
        self._pieces: OrderedDict[int, list[Row]] = OrderedDict()
        self._array = False
        self.first_s = 0.0
        self.span_s = 0.0
        self.shortest_input: int | None = None
        self.longest: int | None = None
        self.sample: list[str] = []
        self.notes: tuple[str, ...] = ()
        try:
            with path.open("rb") as file:
                self._parse, start = self._open(file)
                self.length = self._scan(file, start)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}", "give the path of a trace file that can be read") from None

    def row(self, index: int) -> Row:
        """Row `index`. IndexError past the last."""
        if not 0 <= index < self.length:
            raise IndexError(index)
        number = self._marks.piece_of(index)
        first, _ = self._marks.start(number)
        return self._piece(number)[index - first]

    def _open(self, file: BinaryIO) -> tuple[Parse, Mark]:
        """The row parser, and where the rows begin."""
        kind, mend = self.source.format, f"give a file in the {self.source.format} format"
        above, line = 0, 1  # blank lines: their bytes, and the first line below them
        while (first := file.readline(1 << 20)) and first.removeprefix(_BOM).isspace():
            above, line = above + len(first), line + 1
        if not first:
            raise BadInput(f"{self.path}: the file is empty", mend)
        if b"\0" in first:
            raise BadInput(f"{self.path}:{line}: not text", mend)
        if kind in _CSV:
            try:
                return _CSV[kind](first), Mark(above + len(first), line + 1)
            except RowError as error:
                raise BadInput(f"{self.path}:{line}: {error}", mend) from None
        parse = _TEXTS.get(kind)
        if parse is None:
            milliseconds = kind == "mooncake"
            labels = TraceLabels() if milliseconds else self.source.labels
            parse = timed_rows(0.001 if milliseconds else self.source.seconds_per_unit, labels)
        head = first.removeprefix(_BOM)
        self._array = head.lstrip()[:1] == b"["
        unread = len(head.lstrip()) - 1 if self._array else len(head)
        return parse, Mark(above + len(first) - unread, line)

    def _scan(self, file: BinaryIO, start: Mark) -> int:
        """Checks every row, sets the marks and the figures, returns the number of rows."""
        count, silent, empty, last = 0, 0, 0, float("-inf")
        shortest, longest = 1 << 62, 0
        first_s: float | None = None
        for mark, row in self._rows(file, start):
            if row is None:
                empty += 1
                continue
            self._marks.note(count, mark)
            count += 1
            if row.conversation is not None:
                self._sample(row.conversation)
                continue
            time_s = row.time_s or 0.0
            if first_s is None:
                first_s = time_s
            if time_s < last:
                raise BadInput(f"{self.path}:{mark.line}: earlier than the row before it", "sort the trace by time")
            last = time_s
            shortest = min(shortest, row.input_tokens)
            longest = max(longest, row.input_tokens + max(row.output_tokens, 1))
            silent += row.output_tokens < 1
        if not count:
            raise BadInput(f"{self.path}: the trace has no rows", "give a trace with at least one request")
        if first_s is not None:
            self.first_s, self.span_s = first_s, last - first_s
            self.shortest_input, self.longest = shortest, longest
        notes = [f"{silent} rows of the trace ask for no output tokens; they are sent with 1"] if silent else []
        if empty:
            notes.append(f"{empty} rows of {self.path.name} hold nothing that a user said; they are left out")
        self.notes = tuple(notes)
        return count

    def _sample(self, conversation: Conversation) -> None:
        if len(self.sample) < _SAMPLE:
            said = [answer for answer in conversation.answers if isinstance(answer, str)]
            said += [content for message in conversation.opening if isinstance(content := message["content"], str)]
            self.sample += [text[:_SAMPLE_CHARACTERS] for text in said[:2] if text.strip()]

    def _piece(self, number: int) -> list[Row]:
        rows = self._pieces.get(number)
        if rows is None:
            _, mark = self._marks.start(number)
            size = self._marks.size(number)
            rows = []
            try:
                with self.path.open("rb") as file:
                    for _, row in self._rows(file, mark):
                        if row is not None:
                            rows.append(row)
                            if len(rows) == size:
                                break
            except OSError as error:
                raise BadInput(
                    f"{self.path}: {error.strerror}", "keep the trace file in place during the run"
                ) from None
            self._pieces[number] = rows
            if len(self._pieces) > 4:
                self._pieces.popitem(last=False)
        return rows

    def _rows(self, file: BinaryIO, start: Mark) -> Iterator[tuple[Mark, Row | None]]:
        cut = elements if self._array else lines
        parse = self._parse
        try:
            for mark, text in cut(file, start):
                try:
                    yield mark, parse(text)
                except RowError as error:
                    raise BadInput(f"{self.path}:{mark.line}: {error}", "mend or remove that line") from None
        except BadRow as fault:
            mend = f"give a file in the {self.source.format} format"
            raise BadInput(f"{self.path}:{fault.line}: {fault}", mend) from None


class Trace:
    """A trace file as what is to be sent; times are offsets from the first row's."""

    def __init__(
        self, file: TraceFile, request_class: str, item: RequestClass, characters_per_token: float | None = None
    ) -> None:
        self.file = file
        self._source = file.source
        self._class = request_class
        self._item = item
        self._characters_per_token = characters_per_token or CHARACTERS_PER_TOKEN
        self.notes = file.notes

    @property
    def length(self) -> int | None:
        return None if self._source.repeat else self.file.length

    def design(self, index: int) -> Design:
        row, offset_s = self._row(index)
        if row.conversation is None:
            return Design(
                request_class=self._class,
                input_tokens=max(row.input_tokens, 1),
                output_tokens=max(row.output_tokens, 1),
                blocks=row.blocks,
                block_tokens=self._source.block,
                offset_s=offset_s,
            )
        conversation = row.conversation
        turns = min(1 + len(conversation.later), self._source.most_turns or 1 + len(conversation.later))
        return Design(
            request_class=self._class,
            input_tokens=None,
            output_tokens=self._answer_tokens(conversation, 0, index),
            turns=turns,
            messages=conversation.opening,
        )

    def turn(self, index: int, turn: int) -> TurnDesign:
        conversation = self._row(index)[0].conversation
        assert conversation is not None, "only texts have later turns"
        said = conversation.later[turn - 1]
        answer = self._answer_tokens(conversation, turn, index)
        return TurnDesign(0, answer, self._source.think_time, said.role, said.text)

    def _row(self, index: int) -> tuple[Row, float | None]:
        """(row, seconds since the first row); where the trace repeats, one round after the other."""
        rounds, at = divmod(index, self.file.length) if self._source.repeat and index >= 0 else (0, index)
        row = self.file.row(at)
        if row.time_s is None:
            return row, None
        mean_gap = self.file.span_s / max(self.file.length - 1, 1)
        return row, row.time_s - self.file.first_s + rounds * (self.file.span_s + mean_gap)

    def _answer_tokens(self, conversation: Conversation, turn: int, index: int) -> int:
        """The class's own length where it says one, else the recorded answer's, as far as characters tell."""
        if self._item.output_tokens is not None:
            # A golden-ratio sequence: evenly spread quantiles, without a seed of their own.
            return self._item.output_tokens.at(((index * 31 + turn + 1) * 0.6180339887498949) % 1 or 0.5)
        recorded = conversation.answers[turn] if turn < len(conversation.answers) else None
        if isinstance(recorded, int):
            return recorded
        if not recorded:
            return _UNTOLD_ANSWER
        return max(1, round(len(recorded) / self._characters_per_token))


def open_trace(path: Path, source: TraceSource) -> TraceFile:
    """The file, checked; within a process once for as long as it does not change. Raises `BadInput`."""
    try:
        stat = path.stat()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "give the path of a trace file that can be read") from None
    return _opened(path, source.model_copy(update={"file": None}), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=8)
def _opened(path: Path, source: TraceSource, size: int, changed_ns: int) -> TraceFile:
    return TraceFile(path, source)


def measured_characters(sample: Sequence[str], count: Callable[[str], int]) -> tuple[float, float] | None:
    """(characters per token over the sample, largest share by which one text's own differs); None without texts."""
    pairs = [(len(text), max(count(text), 1)) for text in sample]
    if not pairs:
        return None
    per_token = sum(length for length, _ in pairs) / sum(tokens for _, tokens in pairs)
    return per_token, max(abs(length / per_token / tokens - 1) for length, tokens in pairs)
