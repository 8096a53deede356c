"""Restricted unpickler: interprets the few pickle opcodes that a state dict of tensors needs, and runs no code.

A pickle is a program for a stack machine. Python's unpickler imports any function that the program names and calls it.
This one knows dicts, lists, plain values and a dozen globals that describe tensors, and refuses everything else. It
builds descriptions only: no tensor is created before its storage has been checked.
"""

import io
import math
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from heddle.core import DamageError, UsageError, brief, first_line

MAX_PICKLE_BYTES = 16 << 20  # bytes of a pickle; its tensors are stored outside
MAX_OPCODES = 250_000  # about thirty for each tensor
MAX_DIMENSIONS = 16
MAX_INTEGER = 1 << 63
QUOTES = "'\""

STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
# Newer dtypes have no storage class; the pickle names the dtype.
DTYPES = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, *STORAGES.values())


class StackMark:
    """The MARK on the stack, above which a run of values begins."""


@dataclass(frozen=True)
class AllowedGlobal:
    """A global that a pickle may name, and what it means here."""

    name: str
    meaning: Any


@dataclass(frozen=True)
class StorageRef:
    """A storage: numbers outside the pickle."""

    key: str
    dtype: torch.dtype | None  # None: bytes, whose dtype the tensor gives
    items: int

    @property
    def itemsize(self) -> int:
        """Return the size of one item in bytes."""
        return 1 if self.dtype is None else self.dtype.itemsize


@dataclass(frozen=True)
class TensorRef:
    """A tensor: a strided view of a storage."""

    storage: StorageRef
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


class UnsafePickle(UsageError):
    """A pickle that holds or calls anything but tensors."""


def _allowed_globals() -> dict[str, AllowedGlobal]:
    known: dict[str, Any] = {
        "collections.OrderedDict": dict,
        "torch._utils._rebuild_tensor": _rebuild_tensor,
        "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
        "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
        "torch._utils._rebuild_parameter": _rebuild_parameter,
        "torch.storage.UntypedStorage": StorageRef,
        "torch.UntypedStorage": StorageRef,
    }
    known |= {f"torch.{name}": dtype for name, dtype in STORAGES.items()}
    known |= {f"{dtype}": dtype for dtype in DTYPES}
    return {name: AllowedGlobal(name, meaning) for name, meaning in known.items()}


# --- what may be rebuilt ----------------------------------------------------------------------------------------------


def _integer(value: object) -> int:
    if type(value) is not int or not 0 <= value < MAX_INTEGER:
        raise ValueError(f"want a non-negative integer below 2**63, found {_kind(value)}")
    return value


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > MAX_DIMENSIONS:
        raise ValueError(f"want a shape of at most {MAX_DIMENSIONS} dimensions, found {_kind(value)}")
    return tuple(_integer(side) for side in value)


def _tensor_ref(storage: object, dtype: torch.dtype | None, offset: object, *sizes: object) -> TensorRef:
    if not isinstance(storage, StorageRef):
        raise ValueError(f"want a storage for a tensor, found {_kind(storage)}")
    dtype = dtype or storage.dtype
    if dtype is None or (storage.dtype not in (None, dtype)):
        raise ValueError("a tensor and its storage have different dtypes")
    made = TensorRef(storage, dtype, _integer(offset), *map(_integers, sizes))
    if len(made.shape) != len(made.strides):
        raise ValueError("the number of strides does not match the number of dimensions")
    capacity = storage.items * storage.itemsize // dtype.itemsize
    last = made.offset + sum((side - 1) * step for side, step in zip(made.shape, made.strides, strict=True))
    if made.numel > capacity or (made.numel and last >= capacity):
        raise ValueError(f"a tensor of shape {brief(made.shape)} does not lie within its storage of {capacity} numbers")
    return made


def _rebuild_tensor(storage: object, offset: object, shape: object, strides: object) -> TensorRef:
    return _tensor_ref(storage, None, offset, shape, strides)


def _rebuild_tensor_v2(*given: object) -> TensorRef:
    if not 6 <= len(given) <= 7 or (len(given) == 7 and given[6]):
        raise ValueError("a tensor that is negated, conjugated or otherwise marked is not read")
    return _tensor_ref(given[0], None, *given[1:4])


def _rebuild_tensor_v3(*given: object) -> TensorRef:
    if not 7 <= len(given) <= 8 or (len(given) == 8 and given[7]):
        raise ValueError("a tensor that is negated, conjugated or otherwise marked is not read")
    dtype = given[6].meaning if isinstance(given[6], AllowedGlobal) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"want a dtype, found {_kind(given[6])}")
    return _tensor_ref(given[0], dtype, *given[1:4])


def _rebuild_parameter(data: object, requires_grad: object, hooks: object) -> TensorRef:
    if not isinstance(data, TensorRef):
        raise ValueError(f"want a tensor for a parameter, found {_kind(data)}")
    return data


def _kind(value: object) -> str:
    # never the value itself: nested lists that share their items can be endless to print
    return value.name if isinstance(value, AllowedGlobal) else f"a {type(value).__name__}"


ALLOWED_GLOBALS = _allowed_globals()


# --- the interpreter --------------------------------------------------------------------------------------------------


class RestrictedUnpickler:
    """Interprets one pickle, opcode by opcode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, StorageRef] = {}

    def run(self, file: io.BytesIO) -> Any:
        """Return what the pickle at the current position of a file describes, and leave the file at its end."""
        for count, (code, argument) in enumerate(self._opcodes(file)):
            if count >= MAX_OPCODES:
                raise UnsafePickle(f"{self.path}: its pickle has more than {MAX_OPCODES} opcodes")
            if code == "STOP":
                break
            handler = OPCODES.get(code)
            try:
                if handler is not None:
                    handler(self, argument)
                elif code in LITERALS:
                    self.stack.append(argument)
                elif code not in IGNORED:
                    self.refuse(f"uses the opcode {code}")
            except (IndexError, KeyError, ValueError, TypeError) as error:
                fault = "its stack does not fit" if isinstance(error, IndexError | KeyError) else str(error)
                raise DamageError(f"{self.path}: its pickle is not well-formed at {code}: {fault}") from None
        if len(self.stack) != 1:
            raise DamageError(f"{self.path}: its pickle ends with {len(self.stack)} values, not one")
        return self.stack[0]

    def _opcodes(self, file: io.BytesIO) -> Iterator[tuple[str, Any]]:
        codes = pickletools.genops(file)
        while True:
            try:
                found = next(codes, None)
            except Exception as error:  # whatever cannot be read as opcodes is damage
                raise DamageError(f"{self.path}: not a pickle: {first_line(error)}") from None
            if found is None:
                return
            yield found[0].name, found[1]

    def refuse(self, what: str) -> NoReturn:
        """Refuse the pickle, and say what it tried to do."""
        raise UnsafePickle(f"{self.path}: its pickle {what}; refused, nothing was executed")

    def since_mark(self) -> list[Any]:
        """Pop the values above the last mark."""
        at = len(self.stack) - 1
        while not isinstance(self.stack[at], StackMark):
            at -= 1
            if at < 0:
                raise IndexError
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def push_global(self, module: object, name: object) -> None:
        """Push an allowed global; refuse any other."""
        if not isinstance(module, str) or not isinstance(name, str):
            self.refuse(f"wants to call what {_kind(module)} and {_kind(name)} name")
        path = f"{module}.{name}"
        if path not in ALLOWED_GLOBALS:
            self.refuse(f"wants to call {brief(path).strip(QUOTES)}")
        self.stack.append(ALLOWED_GLOBALS[path])

    def reduce(self) -> None:
        """Call an allowed global: describe a tensor, or create an empty dict."""
        given, name = self.stack.pop(), self.stack.pop()
        if not isinstance(name, AllowedGlobal) or not isinstance(given, tuple):
            self.refuse(f"wants to call {_kind(name)} with {_kind(given)}")
        if name.meaning is dict:
            if given:
                self.refuse("fills an OrderedDict as it calls it")
            self.stack.append({})
        elif name.meaning in (_rebuild_tensor, _rebuild_tensor_v2, _rebuild_tensor_v3, _rebuild_parameter):
            self.stack.append(name.meaning(*given))
        else:
            self.refuse(f"wants to call {name.name}")

    def build(self) -> None:
        """Ignore the metadata of a state dict: the versions of its modules."""
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, dict) or not isinstance(state, dict) or state.keys() != {"_metadata"}:
            self.refuse(f"wants to set the state of {_kind(target)}")

    def push_storage(self) -> None:
        """Push the description of a storage outside the pickle."""
        given = self.stack.pop()
        if not isinstance(given, tuple) or not 5 <= len(given) <= 6 or given[0] != "storage":
            self.refuse(f"wants an outside object that is not a storage: {_kind(given)}")
        if len(given) == 6 and given[5] is not None:
            self.refuse("wants a view of a storage, as files before 2018 did")
        kind, key, items = given[1], given[2], _integer(given[4])
        if not isinstance(kind, AllowedGlobal) or not (kind.meaning is StorageRef or kind.name[6:] in STORAGES):
            self.refuse(f"wants a storage of {_kind(kind)}")
        if type(key) is not str:
            raise ValueError(f"want a text as a storage's key, found {_kind(key)}")
        made = StorageRef(key, None if kind.meaning is StorageRef else kind.meaning, items)
        if self.storages.setdefault(key, made) != made:
            raise ValueError(f"storage {brief(key)} is described in two ways")
        self.stack.append(made)

    def set_items(self, values: list[Any]) -> None:
        """Put pairs into the dict on the stack; keys are strings or integers, which are cheap to compare."""
        target = self.stack[-1]
        if type(target) is not dict or len(values) % 2:
            self.refuse(f"wants to set items of {_kind(target)}")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int):
                raise ValueError(f"want a text as a key, found {_kind(key)}")
            target[key] = value

    def append(self, values: list[Any]) -> None:
        """Append values to the list on the stack."""
        target = self.stack[-1]
        if type(target) is not list:
            self.refuse(f"wants to append to {_kind(target)}")
        target.extend(values)

    def push_tuple(self, count: int) -> None:
        """Push a tuple of the last values."""
        if len(self.stack) < count:
            raise IndexError
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(values)

    def push_dict(self, values: list[Any]) -> None:
        """Push a dict of pairs."""
        self.stack.append({})
        self.set_items(values)


def _global(unpickler: RestrictedUnpickler, argument: Any) -> None:
    module, _, name = str(argument).partition(" ")  # pickletools joins the two lines with a space
    unpickler.push_global(module, name)


def _instance(unpickler: RestrictedUnpickler, argument: Any) -> None:
    unpickler.refuse(f"wants to call {brief(str(argument).replace(' ', '.')).strip(QUOTES)}")


def _stack_global(unpickler: RestrictedUnpickler, argument: Any) -> None:
    name = unpickler.stack.pop()
    unpickler.push_global(unpickler.stack.pop(), name)


def _memoize(unpickler: RestrictedUnpickler, argument: Any) -> None:
    unpickler.memo[len(unpickler.memo) if argument is None else argument] = unpickler.stack[-1]


def _set_item(unpickler: RestrictedUnpickler, argument: Any) -> None:
    values = [unpickler.stack.pop(), unpickler.stack.pop()][::-1]
    unpickler.set_items(values)


OpcodeHandler = Callable[[RestrictedUnpickler, Any], None]
IGNORED = frozenset({"PROTO", "FRAME"})
LITERALS = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
        "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    }
)  # fmt: skip
OPCODES: dict[str, OpcodeHandler] = {
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "MARK": lambda m, _: m.stack.append(StackMark()),
    "POP": lambda m, _: m.stack.__delitem__(-1),
    "POP_MARK": lambda m, _: m.since_mark().clear(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "LIST": lambda m, _: m.stack.append(m.since_mark()),
    "APPEND": lambda m, _: m.append([m.stack.pop()]),
    "APPENDS": lambda m, _: m.append(m.since_mark()),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.push_tuple(1),
    "TUPLE2": lambda m, _: m.push_tuple(2),
    "TUPLE3": lambda m, _: m.push_tuple(3),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "DICT": lambda m, _: m.push_dict(m.since_mark()),
    "SETITEM": _set_item,
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _memoize),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, argument: m.stack.append(m.memo[argument])),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "INST": _instance,
    "REDUCE": lambda m, _: m.reduce(),
    "BUILD": lambda m, _: m.build(),
    "BINPERSID": lambda m, _: m.push_storage(),
}
