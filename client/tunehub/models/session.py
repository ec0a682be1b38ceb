"""A compiled language model at work: sequences in its cache, prompts in chunks, steps of batches."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax

from tunehub.exceptions import UsageError
from tunehub.models.device_tensors import new_memory_in_huge_pages
from tunehub.models.export import CREATE_CACHE

if TYPE_CHECKING:
    from tunehub.graph.types import Executable
    from tunehub.models.types import Device, DeviceTensor
    from tunehub.tir.types import Object, PackedFunc

PAGE = 16
_LOGITS = tvm_ffi.dtype("float32")
_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")
_Functions = TypeVar("_Functions", bound="CompiledFunctions")


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSizes:
    """What a cache is made for: sequences at once, tokens of all of them together, tokens of a prompt at once and of
    a page, which is that of the kernels. Raises UsageError for other sizes."""

    sequences: int
    tokens: int
    chunk: int = 2048
    page: int = PAGE

    def __post_init__(self) -> None:
        if min(self.sequences, self.tokens, self.chunk) < 1 or self.page != PAGE:
            remedy = f"give sequences, tokens and a chunk of 1 or more, and pages of {PAGE}"
            raise UsageError(self, "is no size of a cache", place="sizes", remedy=remedy)

    def shapes(self) -> tuple[object, ...]:
        """As the function that makes it takes them."""
        sizes = (self.sequences, self.tokens, self.chunk, self.page, 0)
        return tuple(tvm.runtime.ShapeTuple([each]) for each in sizes)


class LanguageSession(Protocol):
    """A model at work. Sequences are numbers that `open` gives. Threads may share it: one call runs at a time. The next
    step may overwrite logits: a thread holds `lock` from a step until it has read them. `context`: the most tokens of a
    sequence."""

    context: int

    @property
    def lock(self) -> AbstractContextManager[object]:
        """What each call holds."""

    @property
    def sizes(self) -> CacheSizes:
        """What its cache is made for."""

    def open(self) -> int:
        """A new, empty sequence."""

    def close(self, sequence: int) -> None:
        """Forget a sequence and free its pages."""

    def skip(self, sequence: int, count: int) -> None:
        """Append places whose keys and values nobody has computed: a step's time goes by their number alone."""

    def prefill(self, sequence: int, tokens: Sequence[int]) -> DeviceTensor:
        """Append a prompt, in chunks where it is longer than one; logits float32 `[1, 1, words]` of its last place."""

    def prefill_ragged(self, prompts: Mapping[int, Sequence[int]]) -> DeviceTensor:
        """Append a prompt of its own length to each sequence at once: `[1, sequences, words]`. All fit in a chunk."""

    def decode(self, sequences: Sequence[int], tokens: DeviceTensor) -> DeviceTensor:
        """Append a token, int32 `[sequences]` on the device, to each sequence: logits `[sequences, 1, words]`."""

    def greedy(self, logits: DeviceTensor) -> DeviceTensor:
        """The likeliest tokens, int32 `[places]`, of logits float32 `[…, words]`, on the device."""

    def tokens(self, numbers: Sequence[int]) -> DeviceTensor:
        """Tokens on the device, int32."""


def alone(
    method: Callable[Concatenate[_Functions, _Given], _Found],
) -> Callable[Concatenate[_Functions, _Given], _Found]:
    """A method that waits for those of other threads: TVM's virtual machine and cache are of one thread at a time."""

    @wraps(method)
    def call(session: _Functions, /, *given: _Given.args, **named: _Given.kwargs) -> _Found:
        with session.lock:
            return method(session, *given, **named)

    return call


class CompiledFunctions:
    """The functions of a compiled model on a device, and what both kinds of session do alike."""

    def __init__(
        self, executable: Executable, weights: Iterable[DeviceTensor], device: Device, sizes: CacheSizes
    ) -> None:
        """`weights`: tensors on the device in the module's order."""
        self.sizes, self.device, self.lock = sizes, device, threading.RLock()
        self.words = self.context = 1 << 31  # of the vocabulary, and tokens of a sequence, where they are known
        self._lengths: dict[int, int] = {}
        self._weights = tvm_ffi.convert(list(weights))  # once: of a list, each call makes an array
        self._machine = relax.VirtualMachine(executable, device)
        self._functions: dict[str, PackedFunc] = {}
        self._known: dict[str, bool] = {}
        self._next = 0

    @alone
    def greedy(self, logits: DeviceTensor) -> DeviceTensor:
        """See :class:`LanguageSession`."""
        *places, words = logits.shape
        return self._function("greedy")(_view(logits, (math.prod(places), words), _LOGITS))

    def tokens(self, numbers: Sequence[int]) -> DeviceTensor:
        """See :class:`LanguageSession`. Raises UsageError for a token that the model has not."""
        self._check(numbers)
        return self._on_device(numbers)

    def _on_device(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> DeviceTensor:
        return tvm.runtime.tensor(np.asarray(numbers, "int32"), self.device)

    def _check(self, tokens: Sequence[int]) -> None:
        """Raise UsageError for one that the model has not: kernels would read what lies there."""
        for each in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= each < self.words:
                remedy = "give the tokenizer of this model"
                raise UsageError(each, f"is none of the model's {self.words} tokens", place="tokens", remedy=remedy)

    def _new(self) -> int:
        self._next += 1
        self._lengths[self._next - 1] = 0
        return self._next - 1

    def _forget(self, sequence: int) -> None:
        """Raises UsageError for a sequence that is not open."""
        self._check_open([sequence])
        del self._lengths[sequence]

    def _check_open(self, sequences: Sequence[int]) -> None:
        if not sequences or len(set(sequences)) < len(sequences) or not self._lengths.keys() >= set(sequences):
            remedy = "give at least one, each that `open` gave, and none twice"
            raise UsageError(list(sequences), "are no sequences that are open", place="sequences", remedy=remedy)

    def _grown(self, sequences: Sequence[int], counts: Sequence[int]) -> dict[int, int]:
        """The tokens of each of ``sequences`` when so many come to it. Raises UsageError where one is not open, or has
        more than the model's attention is for."""
        self._check_open(sequences)
        found = {each: self._lengths[each] + count for each, count in zip(sequences, counts, strict=True)}
        if max(found.values()) > self.context:
            remedy = f"give at most {self.context} tokens together"
            raise UsageError(max(found.values()), "are more than the model's context", place="tokens", remedy=remedy)
        return found

    def _check_step(self, sequences: Sequence[int], tokens: DeviceTensor) -> None:
        """Raise UsageError unless there is one token for each sequence."""
        if tuple(tokens.shape) != (len(sequences),):
            reason = f"is not the shape of tokens of {len(sequences)} sequences"
            raise UsageError(tuple(tokens.shape), reason, place="tokens", remedy="give one for each")

    def _chunks(self, tokens: Sequence[int]) -> Iterator[Sequence[int]]:
        """A prompt in parts. Raises UsageError for an empty one."""
        if not len(tokens):
            raise UsageError(tokens, "has no token", place="prompt", remedy="give at least one")
        self._check(tokens)
        for begin in range(0, len(tokens), self.sizes.chunk):
            yield tokens[begin : begin + self.sizes.chunk]

    def _counts(self, prompts: Mapping[int, Sequence[int]]) -> list[int]:
        """Of prompts that are read at once. Raises UsageError."""
        lengths = [len(each) for each in prompts.values()]
        if not lengths or min(lengths) == 0 or sum(lengths) > self.sizes.chunk:
            remedy = f"give 1 to {self.sizes.chunk} tokens, at least one for each sequence"
            raise UsageError(lengths, "are lengths that do not fit in a chunk", place="prompts", remedy=remedy)
        for each in prompts.values():
            self._check(each)
        return lengths

    def _function(self, name: str) -> PackedFunc:
        if name not in self._functions:
            self._functions[name] = self._machine[name]
        return self._functions[name]

    def _has(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = bool(self._machine.module.implements_function(name))
        return self._known[name]


class CacheSession(CompiledFunctions):
    """A model with its weights and a cache of TVM's runtime on one device. Sequences are numbers that `open` gives."""

    def __init__(
        self,
        executable: Executable,
        weights: Iterable[DeviceTensor],
        device: Device,
        sizes: CacheSizes,
    ) -> None:
        """`weights`: tensors on the device in the module's order."""
        super().__init__(executable, weights, device, sizes)
        self._rows: tuple[int, Any] | None = None  # of the embedding: elements of one, and their type
        with new_memory_in_huge_pages(device):
            self._cache = self._function(CREATE_CACHE)(*sizes.shapes())

    @alone
    def skip(self, sequence: int, count: int) -> None:
        """See :class:`LanguageSession`."""
        for begin in range(0, count, self.sizes.chunk):
            self._begin([sequence], [min(self.sizes.chunk, count - begin)])
            _state("end_forward")(self._cache)

    @alone
    def open(self) -> int:
        """See :class:`LanguageSession`."""
        sequence = self._new()
        _state("add_sequence")(self._cache, sequence)
        return sequence

    @alone
    def close(self, sequence: int) -> None:
        """See :class:`LanguageSession`."""
        self._forget(sequence)
        _state("remove_sequence")(self._cache, sequence)

    @alone
    def prefill(self, sequence: int, tokens: Sequence[int]) -> DeviceTensor:
        """See :class:`LanguageSession`."""
        logits = None
        for part in self._chunks(tokens):
            self._begin([sequence], [len(part)])
            logits = self._call("prefill", self._embedded(self._on_device(part), 1, len(part)))
        return logits

    @alone
    def prefill_ragged(self, prompts: Mapping[int, Sequence[int]]) -> DeviceTensor:
        """See :class:`LanguageSession`."""
        lengths = self._counts(prompts)
        self._begin(list(prompts), lengths)
        tokens = self._on_device([token for each in prompts.values() for token in each])
        last = self._on_device(np.cumsum(lengths) - 1)
        return self._call("batch_prefill", self._embedded(tokens, 1, sum(lengths)), last)

    @alone
    def decode(self, sequences: Sequence[int], tokens: DeviceTensor) -> DeviceTensor:
        """See :class:`LanguageSession`."""
        self._check_step(sequences, tokens)
        self._begin(sequences, [1] * len(sequences))
        name = "decode" if len(sequences) == 1 and self._has("decode") else "batch_decode"
        return self._call(name, self._embedded(tokens, len(sequences), 1))

    def _begin(self, sequences: Sequence[int], lengths: Sequence[int]) -> None:
        grown = self._grown(sequences, lengths)
        _state("begin_forward")(self._cache, _shape(tuple(sequences)), _shape(tuple(lengths)))
        self._lengths |= grown

    def _embedded(self, tokens: DeviceTensor, batch: int, length: int) -> DeviceTensor:
        rows = self._function("embed")(tokens, self._weights)
        if self._rows is None:
            self._rows = rows.shape[-1], rows.dtype
        width, dtype = self._rows
        return _view(rows, (batch, length, width), dtype)

    def _call(self, name: str, *inputs: DeviceTensor) -> DeviceTensor:
        made = self._function(name)(*inputs, self._cache, self._weights)
        logits = _global("ffi.ArrayGetItem")(made, 0)
        _state("end_forward")(self._cache)
        return logits


def greedy_tokens(session: LanguageSession, prompts: Sequence[Sequence[int]], count: int) -> npt.NDArray[np.int32]:
    """The `count` likeliest tokens behind each prompt, `[prompts, count]`; all prompts are decoded as one batch."""
    sequences = [session.open() for _ in prompts]
    with session.lock:
        firsts = [session.greedy(session.prefill(*each)).numpy()[0] for each in zip(sequences, prompts, strict=True)]
    tokens, found = session.tokens(firsts), [np.asarray(firsts, "int32")]
    for _ in range(count - 1):
        with session.lock:
            tokens = session.greedy(session.decode(sequences, tokens))
            found.append(tokens.numpy())
    for each in sequences:
        session.close(each)
    return np.stack(found, 1)


# Behind a step the caches of cores hold weights, and Python's own code comes from memory: what it does between calls is
# short, and once where that will do (numpy's product of a shape took 0.1 to 0.3 ms).


def _state(name: str) -> PackedFunc:
    """A function of TVM's runtime that changes a cache."""
    return _global(f"vm.builtin.kv_state_{name}")


@cache
def _global(name: str) -> PackedFunc:
    return tvm.get_global_func(name)


@lru_cache(64)
def _shape(extents: tuple[int, ...]) -> Object:
    return tvm.runtime.ShapeTuple(extents)


def _view(tensor: DeviceTensor, shape: tuple[int, ...], dtype: object) -> DeviceTensor:
    """A tensor of this type with another shape."""
    return tensor._create_view(_shape(shape), dtype, 0)
