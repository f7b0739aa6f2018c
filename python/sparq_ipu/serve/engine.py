# SPDX-License-Identifier: Apache-2.0
"""The thread that serves requests together.

In turns: requests that wait get places that are free, in the order they came. A piece of a prompt is read,
or short prompts together. Then every text that is read gets its next token, in one forward pass. A long
piece is interrupted between two layers for a step of the others. So nobody waits for another's prompt.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import logging
import threading
import time
import traceback
from typing import Any, Sequence

import numpy as np

from sparq_ipu.commands.progress import EVERY, PromptProgress
from sparq_ipu.drafts import Drafts, Pace
from sparq_ipu.kept_prefixes import BLOCK, KeptPrefixes
from sparq_ipu.serve.contexts import MOST_ROWS, Contexts
from sparq_ipu.serve.metrics import Metrics
from sparq_ipu.serve.prefixes import Place, choose, common, longest
from sparq_ipu.serve.requests import Done, Event, Failed, Refused, Request, Text
from sparq_ipu.serve.sampling import LogProbability
from sparq_ipu.serve.text import TextStream

_log = logging.getLogger("sparq_ipu.serve")

#: most tokens of a piece: larger ones are read little sooner
PIECE = 1024
#: time of a piece between two steps of others, in steps
PIECE_STEPS = 1.5
#: most times longer where more texts are read than written: more tokens then share a step
MOST_READERS = 4.0


class Engine:
    """Serves requests with one model.

    Args:
        contexts: the model, with its places.
        tokenizer: of transformers.
        max_waiting: requests that may wait for a place.
        metrics: what it counts into.
        kept: prefixes on disk, which the engine closes at its end; None: places are all that is kept.
        looks_up: drafts come from the text itself where that pays.
    """

    def __init__(
        self,
        contexts: Contexts,
        tokenizer: Any,
        max_waiting: int,
        metrics: Metrics,
        kept: KeptPrefixes | None = None,
        looks_up: bool = True,
    ):
        self.contexts = contexts
        self.metrics = metrics
        self.max_waiting = max_waiting
        self._looks_up, self._pace = looks_up, Pace()
        self.kept = kept
        self.tokenizer = tokenizer
        #: requests that can have a place or wait for one
        self.most = contexts.n_places + max_waiting
        self._places = [Place(index) for index in range(contexts.n_places)]
        self._wake = threading.Condition()
        #: under the lock of `_wake`
        self._waiting: collections.deque[Request] = collections.deque()
        self._is_closing = self._is_stopping = False
        #: the thread's own
        self._reading: collections.deque[Request] = collections.deque()
        self._writing: list[Request] = []
        self._texts: dict[Request, TextStream] = {}
        self._n_used = 0
        #: places that no request had yet, the next one last: they are touched while nobody waits
        self._untouched = list(range(contexts.n_places - 1, 0, -1))
        self._step_seconds = self._token_seconds = 0.0
        #: times of the last steps; one that was slow by chance makes no piece longer
        self._lately: collections.deque[float] = collections.deque(maxlen=3)
        #: the piece that is being read: when its layer began and its longest layer; when the last step ended
        self._layer_at = self._layer_seconds = self._step_at = 0.0
        self._thread = threading.Thread(target=self._run, name="sparq-ipu-serve", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """The thread runs and takes requests."""
        return self._thread.is_alive() and not self._is_closing

    def submit(self, *requests: Request) -> None:
        """Take these requests, or none of them.

        Raises:
            Refused: too many wait, or the engine closes.
        """
        with self._wake:
            if not self.is_alive:
                raise Refused("the server is shutting down", is_closing=True)
            n_free = sum(place.is_free for place in self._places)
            room = self.max_waiting + n_free - len(self._waiting)
            if len(requests) > room:
                self.metrics.requests.labels("refused").inc(len(requests))
                raise Refused(f"too many requests wait, {len(self._waiting)}; try again", is_closing=False)
            self._waiting.extend(requests)
            self.metrics.waiting.set(len(self._waiting))
            self._wake.notify()

    def cancel(self, request: Request) -> None:
        """Nobody wants the rest: its place is free after the pass that is being made. No event comes of it.
        A request that has ended is left alone."""
        with self._wake:
            request.is_cancelled = True
            if request in self._waiting:
                self._waiting.remove(request)
                self.metrics.waiting.set(len(self._waiting))
                self.metrics.requests.labels("cancelled").inc()

    def close(self) -> None:
        """Take no more requests. Those that wait are refused; those that have a place are finished."""
        with self._wake:
            self._is_closing = True
            refused = list(self._waiting)
            self._waiting.clear()
            self.metrics.waiting.set(0)
            self._wake.notify()
        for request in refused:
            self.metrics.requests.labels("refused").inc()
            self._emit(request, Failed("the server is shutting down", is_refused=True))

    def stop(self, seconds: float = 0.0) -> None:
        """Close, and wait for running requests; those that are not done in time fail."""
        self.close()
        self._thread.join(seconds)
        self._is_stopping = True
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    while not (self._is_busy or self._is_closing or self._untouched):
                        self._wake.wait()
                    if self._is_closing and not (self._reading or self._writing):
                        return
                    is_busy = self._is_busy
                if self._is_stopping:
                    return
                if is_busy:
                    self._turn()
                else:
                    self._touch()
        except Exception as error:
            _log.error("The engine stopped: %s", where(error))
        finally:
            with self._wake:
                self._is_closing = True
            ended = Failed("the server ended before the answer did", is_refused=self._is_stopping)
            for request in [*self._reading, *self._writing]:
                self._end(request, "failed", ended)
            self.close()
            if self.kept is not None:
                self.kept.close()

    @property
    def _is_busy(self) -> bool:
        return bool(self._waiting or self._reading or self._writing)

    def _touch(self) -> None:
        try:
            self.contexts.touch(self._untouched[-1])
        except Exception as error:  # the request that needs the place fails alone
            _log.warning("The memory of a place could not be reserved: %s", where(error))
        self._untouched.pop()

    def _turn(self) -> None:
        for request in [*self._reading, *self._writing]:
            if request.is_cancelled:
                self._end(request, "cancelled", None)
        self._admit()
        pieces = self._next_pieces()
        if pieces:
            self._read(pieces)
        elif not self._writing:  # all wait for the disk
            fetches = [request.fetch for request in self._reading if request.fetch is not None]
            concurrent.futures.wait(fetches, 0.01, concurrent.futures.FIRST_COMPLETED)
        if self._writing:
            self._write(list(self._writing))

    def _admit(self) -> None:
        """Give free places to those who wait, in their order."""
        while True:
            with self._wake:
                shortest, rows = self.contexts.cache.shortest, self.contexts.piece_rows
                waits = self._waiting
                place = choose(self._places, waits[0].tokens, rows, shortest, BLOCK) if waits else None
                if place is None:
                    return
                request = waits.popleft()
                place.is_free = False
                self.metrics.waiting.set(len(self._waiting))
            self._n_used += 1
            place.used = self._n_used
            request.place = place
            if place.index in self._untouched:
                self._untouched.remove(place.index)
            before = [] if request.echo is None else request.tokens[-8:].tolist()
            skips = request.form is None
            self._texts[request] = TextStream(self.tokenizer, request.stops, before, skips)
            self._reading.append(request)
            self.metrics.running.set(len(self._reading) + len(self._writing))
            try:  # what it holds of this prompt stays
                n = 0 if request.reports_prompt else longest([place], request.tokens, rows, shortest)[1]
                self.contexts.cache.keep([place.index], [n])
                place.tokens = place.tokens[:n]
                request.n_read = request.n_held = n
            except Exception as error:
                self._fail(request, error)

    def _next_pieces(self) -> dict[Request, int]:
        """Whose next tokens are read now, and how many: a piece of the next prompt, and others that fit in
        the same pass whole. One waits while another who came before reads what both begin with."""
        pieces: dict[Request, int] = {}
        rows, room = self.contexts.piece_rows, self._piece_tokens()
        for request in list(self._reading):
            alone = request.reports_prompt
            if room < rows or (alone and pieces) or not self._is_ready(request):
                continue
            rest = len(request.tokens) - request.n_read
            # logits of all tokens of a large piece would take much memory
            n = min(BLOCK if alone else room, rest)
            if pieces and n < rest:
                continue
            pieces[request] = n
            room = 0 if alone else room - -(-n // rows) * rows
            self._reading.remove(request)
            self._reading.append(request)
        return pieces

    def _is_ready(self, request: Request) -> bool:
        """Whether tokens are to be read. Before the first, what places and the disk have of them is taken."""
        if request.fetch is not None and not request.fetch.done():
            return False
        if any(self._reads_the_same(other, request) for other in self._reading):
            return False
        if request.n_read == request.n_held and not request.reports_prompt:
            assert request.place is not None
            try:
                self._copy_prefix(request, request.place)
                if self._take_kept(request, request.place):
                    return False
            except Exception as error:
                self._fail(request, error)
                return False
            request.progress = PromptProgress(len(request.tokens), request.n_held)
        return True

    @staticmethod
    def _reads_the_same(other: Request, request: Request) -> bool:
        if other is request or other.came >= request.came or other.n_read < request.n_read:
            return False
        shared = common(other.tokens, request.tokens) // BLOCK * BLOCK
        return shared > other.n_read

    def _read(self, pieces: dict[Request, int]) -> None:
        """Read so many tokens of these prompts, in one pass; if it fails, each alone, and who fails alone
        fails."""
        requests = list(pieces)
        places, held = _indices(requests), [request.n_read for request in requests]
        tokens = [r.tokens[r.n_read : r.n_read + n].tolist() for r, n in pieces.items()]
        of_all = requests[0].reports_prompt
        self._layer_at = self._step_at = time.perf_counter()
        self._layer_seconds = 0.0
        try:
            logits = self.contexts.read(places, tokens, held, self._between_layers, of_all).numpy()
        except Exception as error:
            if len(requests) == 1:
                self._fail(requests[0], error)
                return
            _log.warning("%d prompts failed together and are read alone: %s", len(requests), where(error))
            self.contexts.cache.keep(places, held)
            for request, n in pieces.items():
                self._read({request: n})
            return
        self._token_seconds = self._layer_seconds / sum(pieces.values())
        for row, request in enumerate(requests):
            try:
                self._has_read(request, pieces[request], logits if of_all else logits[row : row + 1])
            except Exception as error:
                self._fail(request, error)

    def _has_read(self, request: Request, n: int, logits: np.ndarray) -> None:
        """The place holds n more tokens. logits: after the last of them, or all for a report."""
        place = request.place
        assert place is not None
        request.n_read += n
        place.tokens = request.tokens[: request.n_read]
        request.progress.n_read += n
        if request.progress.is_due(EVERY):
            _log.info("%s", request.progress)
        if self.kept is not None:
            begin = self.contexts.cache.begin(place.index)
            self.kept.keep(place.tokens, functools.partial(self.contexts.cache.read, place.index), begin)
        self.metrics.prompt_tokens.labels("read").inc(n)
        if request.reports_prompt:
            self._report_prompt(request, logits)
        if request.n_read == len(request.tokens):
            self._reading.remove(request)
            self._writing.append(request)
            self.metrics.prompt_tokens.labels("held").inc(request.n_held)
            self._begin(request, logits[-1])

    def _copy_prefix(self, request: Request, place: Place) -> None:
        """Copy the part of the prompt that another place holds."""
        source, n = longest(self._places, request.tokens, BLOCK, self.contexts.cache.shortest)
        if source is not None and source is not place and n > request.n_read:
            self.contexts.cache.copy(source.index, place.index, n)
            place.tokens = request.tokens[:n]
            request.n_read = request.n_held = n

    def _take_kept(self, request: Request, place: Place) -> bool:
        """Take what the disk has of the prompt; whether more may come."""
        if self.kept is None or request.is_fetched:
            return False
        fetch, request.fetch = request.fetch, None
        if fetch is not None:
            rows = fetch.result()
            if not rows:
                request.is_fetched = True
                return False
            # another place may have had some of it meanwhile
            seen = request.n_read - request.fetched_from
            more = [(key[:, seen:], value[:, seen:]) for key, value in rows]
            if more[0][0].shape[1] > 0:
                self.contexts.cache.append(place.index, more)
                request.n_read = request.n_held = request.n_read + more[0][0].shape[1]
                place.tokens = request.tokens[: request.n_read]
        # after the last token the model is asked
        request.fetched_from = request.n_read // BLOCK * BLOCK
        request.fetch = self.kept.fetch(request.tokens[:-1], request.fetched_from)
        return True

    def _report_prompt(self, request: Request, logits: np.ndarray) -> None:
        """Report log-probabilities of the prompt; logits are those of a piece."""
        start = request.n_read - len(logits)
        if start == 0:
            request.log_probabilities.append(LogProbability(int(request.tokens[0]), None, []))
        for row, token in zip(logits, request.tokens[start + 1 : request.n_read + 1].tolist()):
            reported = request.sampler.log_probability(row, token)
            assert reported is not None
            request.log_probabilities.append(reported)

    def _begin(self, request: Request, logits: np.ndarray) -> None:
        """The prompt is read: the answer begins, with logits (vocabulary,)."""
        if request.echo is not None:
            self._say(request, request.echo)
        if self._looks_up:
            request.drafts = Drafts(request.tokens.tolist(), self._pace)
        if request.max_new:
            self._take(request, logits)
        else:
            self._finish(request, "length", "")

    def _piece_tokens(self) -> int:
        """As many as may be: nothing interrupts a layer, so it is read in the time between two steps."""
        if not self._writing or not self._step_seconds or not self._token_seconds:
            return PIECE
        n = int(self._patience() / self._token_seconds) // BLOCK * BLOCK
        return min(max(n, BLOCK), PIECE)

    def _patience(self) -> float:
        """Seconds between two steps, of those who get tokens, in which others' prompts are read."""
        readers = min(max(len(self._reading) / len(self._writing), 1.0), MOST_READERS)
        return PIECE_STEPS * readers * self._step_seconds

    def _between_layers(self) -> None:
        """A step of those who get tokens, if it is time."""
        now = time.perf_counter()
        self._layer_seconds = max(self._layer_seconds, now - self._layer_at)
        # the next layer takes as long as those before it
        until = now + self._layer_seconds
        if self._writing and until - self._step_at > self._patience():
            self._write(list(self._writing))
            now = self._step_at = time.perf_counter()
        self._layer_at = now

    def _write(self, requests: list[Request]) -> None:
        """Make a step of all; one that fails is made again with each alone, and who fails alone fails."""
        start = time.perf_counter()
        try:
            self._step(requests)
            self._lately.append(time.perf_counter() - start)
            self._step_seconds = min(self._lately)
        except Exception as error:
            if len(requests) == 1:
                self._fail(requests[0], error)
                return
            _log.warning("A step of %d texts failed and is repeated alone: %s", len(requests), where(error))
            self._restore(requests)
            for request in requests:
                if request in self._writing:
                    self._write([request])

    def _step(self, requests: list[Request]) -> None:
        """The next token of each, and further ones where a draft is right."""
        # short texts are decoded densely, and neighbours of one kind attend together
        requests = sorted(requests, key=lambda request: request.n_stored)
        drafts = self._drafts(requests)
        texts = list(zip(requests, drafts))
        rows = [
            (request, at, [request.new[-1], *draft][at])
            for at in range(1 + max(map(len, drafts)))
            for request, draft in texts
            if at <= len(draft)
        ]
        of, ahead, tokens = zip(*rows)
        held = [request.n_stored + at for request, at in zip(of, ahead)]
        start = time.perf_counter()
        logits = self.contexts.step(_indices(of), tokens, held).numpy()
        self._pace.took(len(rows), time.perf_counter() - start)
        for request, draft in texts:
            n, mine = len(request.new), [row for row, other in zip(logits, of) if other is request]
            is_forced = request.form is not None and bool(request.form.forced)
            self._take_or_fail(request, mine, draft)
            if draft and request.drafts is not None and not is_forced:
                request.drafts.took(len(draft), len(request.new) - n - 1)
        left = [request for request, draft in texts if draft and request in self._writing]
        if left:
            self._restore(left)

    def _drafts(self, requests: list[Request]) -> list[list[int]]:
        """Of each text, the tokens that its form forces, or what followed its last tokens before as long as
        checking that pays."""
        drafts: list[list[int]] = []
        n_rows = len(requests)
        for request in requests:
            most = min(MOST_ROWS - n_rows, request.max_new - len(request.new) - 1)
            if request.form is not None and request.form.forced:
                drafts.append(request.form.forced[: max(most, 0)])
            else:
                drafts.append([] if request.drafts is None else request.drafts.draft(most, n_rows))
            n_rows += len(drafts[-1])
        return drafts

    def _take_or_fail(self, request: Request, rows: list[np.ndarray], draft: Sequence[int] = ()) -> None:
        """Take the next token, from the first row, and one of each further row as long as they are the
        drafted ones."""
        try:
            for at, row in enumerate(rows):
                self._take(request, row)
                if request not in self._writing or request.new[-1:] != draft[at : at + 1]:
                    return
        except Exception as error:
            self._fail(request, error)

    def _take(self, request: Request, logits: np.ndarray) -> None:
        """The next token of a text, from logits (vocabulary,)."""
        if not np.isfinite(logits.max()):
            raise ArithmeticError("the model's logits are not finite")
        sampler, text = request.sampler, self._texts[request]
        form = request.form
        token = sampler.choose(logits, None if form is None else form.allowed())
        now = time.perf_counter()
        if request.new:
            self.metrics.between_tokens.observe(now - request.last_at)
        else:
            self.metrics.first_token.observe(now - request.came)
        request.last_at = now
        request.new.append(token)
        if request.drafts is not None:
            request.drafts.push(token)
        self.metrics.new_tokens.inc()
        reported = sampler.log_probability(logits, token)
        if token in request.stop_tokens:
            self._finish(request, "stop", text.finish())
            return
        request.fresh.append(token)
        if reported is not None:
            request.log_probabilities.append(reported)
        more = text.push(token)
        if form is not None:
            form.take(token)
        if text.is_stopped:
            self._finish(request, "stop", more)
        elif form is not None and form.is_complete:
            self._finish(request, "stop", more + text.finish())
        elif len(request.new) >= request.max_new:
            self._finish(request, "length", more + text.finish())
        elif more:
            self._say(request, more)

    def _say(self, request: Request, text: str) -> None:
        if text or request.fresh:
            self._emit(request, Text(text, request.fresh, request.log_probabilities))
            request.fresh, request.log_probabilities = [], []

    def _finish(self, request: Request, reason: str, text: str) -> None:
        self._say(request, text)
        of = request.drafts
        drafted = (0, 0) if of is None else (of.n_drafted, of.n_accepted)
        self._end(
            request, reason, Done(reason, len(request.tokens), request.n_held, len(request.new), *drafted)
        )

    def _end(self, request: Request, outcome: str, event: Event | None) -> None:
        """The place is free again, and keeps of the prompt what was read."""
        for group in (self._reading, self._writing):
            if request in group:
                group.remove(request)
        self._texts.pop(request, None)
        place = request.place
        assert place is not None
        try:
            (n,) = self.contexts.cache.keep([place.index], [request.n_read])
            place.tokens = request.tokens[:n]
        except Exception as error:
            _log.error("A place could not be emptied: %s", where(error))
            place.tokens = place.tokens[:0]
        place.is_free = True
        self.metrics.running.set(len(self._reading) + len(self._writing))
        self.metrics.requests.labels(outcome).inc()
        if event is not None:
            self._emit(request, event)

    def _restore(self, requests: list[Request]) -> None:
        """The places hold what they did before a pass that failed."""
        self.contexts.cache.keep(_indices(requests), [request.n_stored for request in requests])

    def _fail(self, request: Request, error: Exception) -> None:
        if request not in self._reading and request not in self._writing:
            return  # it had ended
        _log.error("A request failed: %s", where(error))
        self._end(request, "failed", Failed(f"the answer could not be made ({type(error).__name__})"))

    def _emit(self, request: Request, event: Event) -> None:
        if request.is_cancelled:
            return
        try:
            request.emit(event)
        except Exception as error:  # whoever asked is gone
            _log.info("A client no longer reads its answer: %s", where(error))
            request.is_cancelled = True


def _indices(requests: Sequence[Request]) -> list[int]:
    return [request.place.index for request in requests if request.place is not None]


def where(error: BaseException) -> str:
    """Kind and place of an error. Not its message, which may have something of a prompt in it."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}"
