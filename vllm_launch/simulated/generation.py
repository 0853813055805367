"""What the scheduler works on: generations, the limits they obey, and the step that is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum


class Phase(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


class Generation:
    """One generation: a prompt of `prompt_tokens` tokens that ends after `output_tokens` more.

    `block_hashes` identify the content of the full blocks of the prompt, and beyond it of the output where the one who
    made them knows it; a shorter list means that the rest can be shared with nobody.
    """

    __slots__ = (
        "_anchor",
        "_block_step",
        "_order",
        "arrived",
        "block_hashes",
        "blocks",
        "cached_tokens",
        "computed",
        "generated_before",
        "number",
        "output_tokens",
        "owner",
        "phase",
        "preemptions",
        "priority",
        "prompt_tokens",
        "registered",
        "scheduled",
    )

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        block_hashes: Sequence[int] = (),
        priority: int = 0,
        arrived: float = 0.0,
        owner: object = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.block_hashes = block_hashes
        self.priority = priority
        self.arrived = arrived
        self.owner = owner
        self.phase = Phase.WAITING
        self.blocks: list[int] = []
        self.registered = 0
        self.computed = 0
        self.generated_before = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.scheduled = False
        self._anchor = 0
        self._block_step = -1
        self._order = 0
        self.number = 0

    @property
    def known_tokens(self) -> int:
        """Tokens that must be computed before the next one can be sampled (while not decoding)."""
        return self.prompt_tokens + self.generated_before


@dataclass(slots=True)
class Step:
    """What one step computes: `prefills` as sequence -> tokens, and all decoding sequences but the `starved` ones."""

    number: int
    prefills: dict[Generation, int] = field(default_factory=dict)
    decodes: int = 0
    context: int = 0
    starved: set[Generation] = field(default_factory=set)
    admitted: list[Generation] = field(default_factory=list)
    preempted: list[Generation] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.decodes + sum(self.prefills.values())

    @property
    def prefill_shapes(self) -> list[tuple[int, int]]:
        """(tokens computed now, tokens before them) of each prefill, as `StepTimes` wants them."""
        return [(tokens, sequence.computed) for sequence, tokens in self.prefills.items()]


@dataclass(frozen=True, slots=True)
class Limits:
    """The launch flags a step obeys; names and meanings are vLLM's."""

    max_num_scheduled_tokens: int
    max_num_active_seqs: int
    max_model_len: int
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    priority_policy: bool = False
    reserve_full_isl: bool = True
    watermark: float = 0.0
