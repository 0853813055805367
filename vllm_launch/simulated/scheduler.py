"""vLLM's V1 scheduler as a pure stepper: which sequences run in a step, and with how many tokens each.

The rules followed (vLLM 0.32, `v1/core/sched`): one token budget a step; running sequences before waiting ones; a
prompt that does not fit is computed in chunks; a sequence that finds no block free makes the last one (the one of
lowest priority under `priority`) give up its blocks and compute them again later; nobody is admitted in a step that had
to do so.

No clock and no sockets. Whoever drives it calls `schedule()` at the start of a step, waits for as long as the step
takes, and calls `complete(step)`; requests may be added and aborted at any time between.

A decoding sequence gains one token in every step, so its progress is implied by the step counter; the scheduler touches
it only when it needs a new block or ends. That makes a step cost what happens in it, not how many sequences it holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from vllm_launch.simulated.generation import Generation, Limits, Phase, Step
from vllm_launch.simulated.kv_cache import KVCache
from vllm_launch.simulated.waiting import FifoWaiting, PriorityWaiting, Waiting


class Scheduler:
    def __init__(self, limits: Limits, cache: KVCache) -> None:
        self.limits = limits
        self.cache = cache
        self.step_number = 0
        self.waiting: Waiting = PriorityWaiting() if limits.priority_policy else FifoWaiting()
        self.running: dict[Generation, None] = {}
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._prefilling: dict[Generation, None] = {}
        self._decoding: dict[Generation, None] = {}
        self._decode_context = 0
        self._need_block: dict[int, list[Generation]] = {}
        self._ends: dict[int, list[Generation]] = {}
        self._added = 0
        self._admitted = 0
        self._watermark_blocks = int(limits.watermark * cache.blocks)

    # -- what may be asked and done between steps -------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def tokens_to_prefill(self) -> int:
        """Prompt tokens of all sequences that have not been computed to their end (`max-num-queued-tokens`)."""
        return sum(s.prompt_tokens for s in (*self.waiting, *self._prefilling))

    def decoding(self) -> Iterable[Generation]:
        """The decoding sequences, in no promised order; not to be changed while read."""
        return self._decoding

    def generated(self, sequence: Generation) -> int:
        """Tokens the sequence has generated in the steps completed so far."""
        if sequence.phase is Phase.DECODE:
            return self.step_number - sequence._anchor
        return sequence.generated_before

    def add(self, sequence: Generation) -> None:
        """Queues a sequence. Its prompt must leave room for a token: `prompt_tokens` < `max_model_len`."""
        room = self.limits.max_model_len - sequence.prompt_tokens
        if room < 1 or sequence.prompt_tokens < 1 or sequence.output_tokens < 1:
            raise ValueError("a sequence needs a prompt, and room for at least one token after it")
        sequence.output_tokens = min(sequence.output_tokens, room)
        sequence.number = self._added
        self._added += 1
        self.waiting.add(sequence)

    def abort(self, sequence: Generation) -> None:
        """Ends a sequence at once, wherever it stands; the step in flight goes on without what it computed for it."""
        if sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        elif sequence.phase is not Phase.DONE:
            self._leave_running(sequence)
        sequence.phase = Phase.DONE

    # -- a step -----------------------------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """Decides the next step. It is empty (`tokens` 0) where nothing can run."""
        step = Step(self.step_number)
        budget = self._schedule_running(step)
        if not step.preempted:
            self._admit(step, budget)
        step.decodes = len(self._decoding) - len(step.starved)
        step.context = self._decode_context
        if step.starved:
            step.context -= sum(self._tokens(s) for s in step.starved)
        return step

    def complete(self, step: Step) -> tuple[list[Generation], list[Generation]]:
        """Takes the step as computed; gives the sequences that gained their first token since they were admitted, and
        those that ended (a sequence can be in both). Every other decoding sequence of the step gained one token."""
        for sequence in step.starved:
            self._postpone(sequence)
        self.step_number += 1
        self._decode_context += len(self._decoding)
        started: list[Generation] = []
        finished: list[Generation] = []
        for sequence, tokens in step.prefills.items():
            if sequence.phase is not Phase.PREFILL:
                continue
            sequence.computed += tokens
            if sequence.computed >= sequence.known_tokens:
                started.append(sequence)
                self._start_decoding(sequence)
        for sequence in self._ends.pop(self.step_number, ()):
            if sequence.phase is Phase.DECODE and self.generated(sequence) >= sequence.output_tokens:
                finished.append(sequence)
                self._leave_running(sequence)
                sequence.generated_before = sequence.output_tokens
                sequence.phase = Phase.DONE
        return started, finished

    # -- running sequences ------------------------------------------------------------------------------------------

    def _schedule_running(self, step: Step) -> int:
        budget = self.limits.max_num_scheduled_tokens
        due = self._need_block.pop(self.step_number, None)
        if not self._prefilling and budget >= len(self._decoding):
            if due:
                self._grow(step, due)
            return budget - (len(self._decoding) - len(step.starved))
        needs = {s for s in due or () if s.phase is Phase.DECODE and s._block_step == self.step_number}
        if self._room_for_all(budget, needs):
            return self._advance_all(step, needs, budget)
        taken = 0
        order = list(self.running)
        for i, sequence in enumerate(order):
            if sequence.phase is Phase.WAITING:
                continue  # preempted for the sake of one before it
            left = budget - taken
            if sequence.phase is Phase.DECODE:
                if left < 1:
                    step.starved.add(sequence)
                    continue
                if sequence in needs and not self._allocate(step, sequence, 1):
                    self._starve(step, order[i + 1 :])
                    break
                taken += 1
            elif left > 0:
                tokens = min(self._chunk(sequence, sequence.known_tokens - sequence.computed), left)
                wanted = self.cache.blocks_for(sequence.computed + tokens) - len(sequence.blocks)
                if not self._allocate(step, sequence, wanted):
                    self._starve(step, order[i + 1 :])
                    break
                step.prefills[sequence] = tokens
                self._register(sequence, sequence.computed + tokens)
                taken += tokens
        return budget - (len(self._decoding) - len(step.starved)) - sum(step.prefills.values())

    def _room_for_all(self, budget: int, needs: set[Generation]) -> bool:
        """Whether every running sequence gets all that it wants: then only those that want more than a token matter."""
        left, blocks = budget - len(self._decoding), len(needs)
        for sequence in self._prefilling:
            tokens = self._chunk(sequence, sequence.known_tokens - sequence.computed)
            left -= tokens
            blocks += max(0, self.cache.blocks_for(sequence.computed + tokens) - len(sequence.blocks))
        return left >= 0 and self.cache.free >= blocks

    def _advance_all(self, step: Step, needs: set[Generation], budget: int) -> int:
        """A step in which nobody goes short; blocks are handed out in the order of admission all the same."""
        for sequence in sorted((*needs, *self._prefilling), key=_by_admission):
            if sequence.phase is Phase.DECODE:
                self._allocate(step, sequence, 1)
                continue
            tokens = self._chunk(sequence, sequence.known_tokens - sequence.computed)
            self._allocate(step, sequence, self.cache.blocks_for(sequence.computed + tokens) - len(sequence.blocks))
            step.prefills[sequence] = tokens
            self._register(sequence, sequence.computed + tokens)
        return budget - len(self._decoding) - sum(step.prefills.values())

    def _grow(self, step: Step, due: list[Generation]) -> None:
        """A block each for the decoding sequences whose next token opens one; the others need nothing this step."""
        number, size = self.step_number, self.cache.block_size
        opening = [s for s in dict.fromkeys(due) if s.phase is Phase.DECODE and s._block_step == number]
        if self.cache.free >= len(opening):
            for sequence, block in zip(opening, self.cache.take(len(opening)), strict=True):
                sequence.blocks.append(block)
                sequence._block_step = number + size
                if sequence.block_hashes:
                    self._register(sequence, self._tokens(sequence) - 1)
            self._need_block.setdefault(number + size, []).extend(opening)
            return
        for sequence in sorted(opening, key=_by_admission):
            if sequence.phase is not Phase.DECODE:
                continue  # preempted for the sake of one before it
            if not self._allocate(step, sequence, 1):
                self._starve(step, [s for s in self.running if s._order > sequence._order])
                return

    def _starve(self, step: Step, sequences: Iterable[Generation]) -> None:
        """These running sequences compute nothing this step: one before them found no block, not even by preempting."""
        step.starved.update(s for s in sequences if s.phase is Phase.DECODE)

    def _allocate(self, step: Step, sequence: Generation, count: int) -> bool:
        """`count` more blocks for a running sequence, preempting others for them; False if it was preempted itself."""
        while self.cache.free < count:
            victim = self._victim()
            self._preempt(step, victim)
            if victim is sequence:
                return False
        if count > 0:
            sequence.blocks += self.cache.take(count)
        if sequence.phase is Phase.DECODE:
            self._register(sequence, self._tokens(sequence) - 1)
            self._expect_block(sequence)
        return True

    def _victim(self) -> Generation:
        if self.limits.priority_policy:
            return max(self.running, key=lambda s: (s.priority, s.arrived, s.number))
        return next(reversed(self.running))

    def _preempt(self, step: Step, sequence: Generation) -> None:
        generated = self.generated(sequence)
        self._leave_running(sequence)
        step.prefills.pop(sequence, None)
        step.starved.discard(sequence)
        step.preempted.append(sequence)
        sequence.generated_before = generated
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        sequence.phase = Phase.WAITING
        self.waiting.put_back(sequence)

    # -- waiting sequences ------------------------------------------------------------------------------------------

    def _admit(self, step: Step, budget: int) -> None:
        while budget > 0 and self.waiting and len(self.running) < self.limits.max_num_active_seqs:
            sequence = self.waiting.first()
            cached = self.cache.cached_prefix(sequence.block_hashes, sequence.known_tokens)
            hit = len(cached) * self.cache.block_size
            missing = sequence.known_tokens - hit
            tokens = self._chunk(sequence, missing)
            if tokens > budget:
                if not self.limits.enable_chunked_prefill:
                    return
                tokens = budget
            reach = sequence.known_tokens if self.limits.reserve_full_isl else hit + tokens
            room = self.cache.free - self.cache.idle(cached) - (self._watermark_blocks if self.running else 0)
            if self.cache.blocks_for(reach) - len(cached) > room:
                return
            self.waiting.remove(sequence)
            self.cache.share(cached)
            sequence.blocks = cached + self.cache.take(self.cache.blocks_for(hit + tokens) - len(cached))
            sequence.registered = len(cached)
            sequence.computed = hit
            if not sequence.preemptions:
                sequence.cached_tokens = hit
                self.prefix_queries += sequence.known_tokens if self.cache.caching else 0
                self.prefix_hits += hit
            sequence.phase = Phase.PREFILL
            sequence.scheduled = True
            self._admitted += 1
            sequence._order = self._admitted
            self.running[sequence] = None
            self._prefilling[sequence] = None
            step.prefills[sequence] = tokens
            step.admitted.append(sequence)
            self._register(sequence, hit + tokens)
            budget -= tokens

    def _chunk(self, sequence: Generation, tokens: int) -> int:
        """`tokens`, or less where `long-prefill-token-threshold` caps it: not for a sequence that is all alone."""
        cap = self.limits.long_prefill_token_threshold
        if not 0 < cap < tokens or self.unfinished <= 1:
            return tokens
        return cap

    # -- bookkeeping of one sequence --------------------------------------------------------------------------------

    def _tokens(self, sequence: Generation) -> int:
        """Prompt and generated tokens of a decoding sequence; all but the last are computed."""
        return sequence.prompt_tokens + self.step_number - sequence._anchor

    def _register(self, sequence: Generation, computed: int) -> None:
        """Makes the blocks known that are full once `computed` tokens are, as vLLM does when it schedules them."""
        if not self.cache.caching:
            return
        full = min(computed // self.cache.block_size, len(sequence.block_hashes))
        for i in range(sequence.registered, full):
            self.cache.remember(sequence.blocks[i], sequence.block_hashes[i])
        sequence.registered = max(sequence.registered, full)

    def _start_decoding(self, sequence: Generation) -> None:
        del self._prefilling[sequence]
        self._decoding[sequence] = None
        sequence._anchor = self.step_number - sequence.generated_before - 1
        sequence.phase = Phase.DECODE
        self._decode_context += self._tokens(sequence)
        self._expect_block(sequence)
        self._expect_end(sequence)

    def _expect_block(self, sequence: Generation) -> None:
        """Files the sequence under the step whose token will not fit into its blocks."""
        room = len(sequence.blocks) * self.cache.block_size - self._tokens(sequence)
        sequence._block_step = self.step_number + room + 1
        self._need_block.setdefault(sequence._block_step, []).append(sequence)

    def _expect_end(self, sequence: Generation) -> None:
        self._ends.setdefault(sequence._anchor + sequence.output_tokens, []).append(sequence)

    def _postpone(self, sequence: Generation) -> None:
        """A decoding sequence gains nothing this step: all that was expected of it comes one step later."""
        if sequence.phase is not Phase.DECODE:
            return
        sequence._anchor += 1
        self._decode_context -= 1
        sequence._block_step += 1
        self._need_block.setdefault(sequence._block_step, []).append(sequence)
        self._expect_end(sequence)

    def _leave_running(self, sequence: Generation) -> None:
        del self.running[sequence]
        if sequence.phase is Phase.DECODE:
            del self._decoding[sequence]
            self._decode_context -= self._tokens(sequence)
            self._register(sequence, self._tokens(sequence) - 1)
        else:
            del self._prefilling[sequence]
        self.cache.release(sequence.blocks)
        sequence.blocks = []
        sequence.registered = 0


def _by_admission(sequence: Generation) -> int:
    return sequence._order
