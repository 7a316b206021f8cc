"""A state as one JSON header and a row of blobs: nested dicts, lists, numbers and strings, with tensors set aside.

There is no pickle: whoever can write such a thing cannot run code with it. Used for checkpoints, and for handing a
state to another worker through memory.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fairlead.core.errors import InvalidSpec

ALIGNMENT = 64

#: Where in memory the header is, and how long.
_HEADER = struct.Struct("<QQ")


@dataclass(frozen=True)
class Layout:
    """A state ready to be written: nothing is copied, and nothing more can be refused."""

    header: bytes
    #: (offset in the payload, the bytes), ascending. Functions, as a GPU's tensors are fetched one at a time.
    blobs: list[tuple[int, Callable[[], memoryview]]]
    #: Bytes of the payload.
    payload: int

    @property
    def size(self) -> int:
        """Bytes that `write` needs."""
        return self._header_at + len(self.header)

    @property
    def _header_at(self) -> int:
        """Behind the payload: writers have the same tensors, but not the same numbers, and so not the same headers."""
        return aligned(ALIGNMENT + self.payload)

    def write(self, memory: Any, *, part: int, parts: int) -> None:
        """One of so many equal parts of everything into a writable buffer, to be `read` there once all are."""
        start = ALIGNMENT
        with memoryview(memory) as view:
            if part == 0:
                view[: _HEADER.size] = _HEADER.pack(self._header_at, len(self.header))
                view[self._header_at : self.size] = self.header
            first, end = self.payload * part // parts, self.payload * (part + 1) // parts
            for offset, fetch in self.blobs:
                if first <= offset < end:
                    blob = fetch()
                    view[start + offset : start + offset + len(blob)] = blob


def lay_out(state: Mapping[str, Any], **facts: Any) -> Layout:
    """Raises InvalidSpec for what cannot be saved, and says where it is. `facts` are written into the header."""
    encoder = _Encoder()
    tree = encoder.encode(dict(state), "")
    header = {**facts, "tree": tree, "blobs": encoder.table}
    return Layout(json.dumps(header, separators=(",", ":"), allow_nan=False).encode(), encoder.blobs, encoder.end)


def read(memory: Any) -> dict[str, Any]:
    """What `Layout.write` has written. Tensors are views of the memory."""
    at, length = _HEADER.unpack_from(memory)
    return restore(json.loads(bytes(memory[at : at + length])), memory, ALIGNMENT)


def restore(header: Mapping[str, Any], memory: Any, start: int) -> dict[str, Any]:
    """The state whose blobs begin at `start`."""
    state: dict[str, Any] = _Decoder(header["blobs"], memory, start).decode(header["tree"])
    return state


class _Encoder:
    """Plain JSON values and lists stand for themselves; all else is an object with one key, its kind."""

    def __init__(self) -> None:
        self.table: list[dict[str, Any]] = []
        self.blobs: list[tuple[int, Callable[[], memoryview]]] = []
        self.end = 0
        #: Tied weights are one tensor under two names: saved once, and one again when loaded.
        self._seen: dict[tuple[Any, ...], int] = {}

    def encode(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if kind is list:
            return [self.encode(item, f"{path}[{at}]") for at, item in enumerate(value)]
        if kind in (tuple, torch.Size):
            return {"tuple": [self.encode(item, f"{path}[{at}]") for at, item in enumerate(value)]}
        if kind in _MAPPINGS:
            return self._mapping(_MAPPINGS[kind], value, path)
        if kind is bytes:
            return {"bytes": self._add({"size": len(value)}, len(value), lambda: memoryview(value))}
        if kind in (torch.Tensor, torch.nn.Parameter):
            return {"tensor": self._tensor(value, path)}
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSUmM":
            return {"scalar" if isinstance(value, np.generic) else "array": self._array(np.asarray(value))}
        raise _refusal(path, kind)

    def _mapping(self, kind: str, value: Mapping[Any, Any], path: str) -> dict[str, Any]:
        for key in value:
            if key is not None and type(key) not in (str, int, float, bool, tuple):
                raise _refusal(f"the key {key!r} of {path or 'the state'}", type(key))
        pairs = [[self.encode(k, path), self.encode(v, _within(path, k))] for k, v in value.items()]
        if hasattr(value, "_metadata"):  # the versions of a model's layers, which torch hangs on its state
            return {kind: pairs, "metadata": self.encode(value._metadata, f"{path}._metadata")}
        return {kind: pairs}

    def _tensor(self, tensor: torch.Tensor, path: str) -> int:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise InvalidSpec(f"{path} is a {tensor.layout} tensor on {tensor.device}; only dense ones can be saved")
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        key = (*place, tensor.is_conj(), tensor.is_neg())
        if key not in self._seen:
            # In the order of memory if that has no gaps: channels-last comes back as channels-last.
            order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
            if not tensor.permute(order).is_contiguous():
                order = list(range(tensor.dim()))
            entry = {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape), "order": order}
            size = tensor.numel() * tensor.element_size()
            self._seen[key] = self._add(entry, size, lambda: _bytes_of(tensor.detach().permute(order)))
        return self._seen[key]

    def _array(self, array: np.ndarray[Any, Any]) -> int:
        entry = {"dtype": array.dtype.str, "shape": list(array.shape)}
        return self._add(entry, array.nbytes, lambda: memoryview(array.tobytes()))

    def _add(self, entry: dict[str, Any], size: int, fetch: Callable[[], memoryview]) -> int:
        offset = aligned(self.end)
        self.end = offset + size
        self.table.append(entry | {"offset": offset})
        self.blobs.append((offset, fetch))
        return len(self.table) - 1


_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
_MAKERS: dict[str, Callable[[Any], Any]] = {"dict": dict, "ordered": OrderedDict, "counter": lambda p: Counter(dict(p))}


class _Decoder:
    """The encoder's inverse, over a file in memory."""

    def __init__(self, table: list[dict[str, Any]], file: Any, start: int) -> None:
        self._table = table
        self._file = file
        self._start = start
        self._tensors: dict[int, torch.Tensor] = {}

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind, content = next(iter(value.items()))
        if kind == "tuple":
            return tuple(self.decode(item) for item in content)
        if kind == "float":
            return float(content)
        if kind in _MAKERS:
            made = _MAKERS[kind]([(self.decode(k), self.decode(v)) for k, v in content])
            if "metadata" in value:
                made._metadata = self.decode(value["metadata"])
            return made
        return self._blob(kind, content)

    def _blob(self, kind: str, number: int) -> Any:
        entry = self._table[number]
        start = self._start + entry["offset"]
        if kind == "bytes":
            return self._file[start : start + entry["size"]]
        if kind == "tensor":
            if number not in self._tensors:
                self._tensors[number] = self._tensor(entry, start)
            return self._tensors[number]
        array = np.ndarray(entry["shape"], np.dtype(entry["dtype"]), self._file, start)
        return array[()] if kind == "scalar" else array

    def _tensor(self, entry: dict[str, Any], start: int) -> torch.Tensor:
        dtype = getattr(torch, entry["dtype"])
        shape, order = entry["shape"], entry["order"]
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        raw = torch.frombuffer(self._file, dtype=torch.uint8, count=count * dtype.itemsize, offset=start)
        stored = raw.view(dtype).reshape([shape[dim] for dim in order])
        return stored.permute([order.index(dim) for dim in range(len(order))])


def _refusal(path: str, kind: type) -> InvalidSpec:
    return InvalidSpec(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved; a state holds dicts, lists and "
        "tuples of tensors, NumPy arrays, numbers, strings and bytes: convert it to these"
    )


def _within(path: str, key: Any) -> str:
    if isinstance(key, str):
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    dense = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().data


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
