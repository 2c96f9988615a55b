"""Tensors without values (``--fake``): large floating tensors, and what is computed from them.

They are tensors of the CPU whose memory is never touched, so that it takes no place: what would compute them runs on PyTorch's meta device, for
shapes and types only. A script that reads a value of one needs an answer of the user.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Sequence

import torch
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ._calls import NAMESPACES
from ._uses import Uses, enter_in_all_threads, is_of_shape_only

#: Floating tensors of as many bytes have no values.
SMALLEST = 1 << 20

#: Functional collectives that copy their operand, with those that write it.
IN_PLACE = {"all_reduce": "all_reduce_", "broadcast": "broadcast_", "all_reduce_coalesced": "all_reduce_coalesced_"}

#: Operators that give all elements of their first argument new values.
OVERWRITING = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_")


class Absent(TorchDispatchMode):  # type: ignore[misc]
    """Computes no values of large floating tensors. ``place`` returns the line of the script that leads to a frame."""

    supports_higher_order_operators = True

    def __init__(self, answers: Sequence[str], uses: Uses, place: Callable[[Any], str]) -> None:
        super().__init__()
        self._answers = [(where, float(value)) for where, _, value in (it.rpartition("=") for it in answers)]
        self._uses = uses
        self._place = place
        #: The small storages without values: while the reference lives, no other storage has the address.
        self._storages: dict[int, StorageWeakRef] = {}
        self._most = 1024
        self._metas: dict[Any, Any] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def install(self) -> None:
        """Enters the mode in all threads, and replaces what reads values outside of operators."""

        def answered(function: Callable[..., Any]) -> Callable[..., Any]:
            def replaced(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                return function(torch.full(tensor.shape, self.answer(), dtype=tensor.dtype) if self.has(tensor) else tensor, *args, **kwargs)

            return replaced

        for name in ("tolist", "numpy", "__array__"):
            setattr(torch.Tensor, name, answered(getattr(torch.Tensor, name)))
        text = torch._tensor_str._str
        torch._tensor_str._str = lambda tensor, **kwargs: text(tensor, **({"tensor_contents": "..."} if self.has(tensor) else kwargs))
        enter_in_all_threads(self)

    def has(self, tensor: Any) -> bool:
        """Whether a tensor has no values."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        if tensor.layout != torch.strided or tensor.is_meta:
            return False
        storage = tensor.untyped_storage()
        return storage._cdata in self._storages or _is_floating(tensor) and storage.nbytes() >= SMALLEST

    def mark(self, tensor: Any) -> None:
        """Notes that a tensor has no values from now on."""
        storage = tensor.untyped_storage()
        if len(self._storages) > self._most:
            self._storages = {key: it for key, it in self._storages.items() if not it.expired()}
            self._most = max(1024, 2 * len(self._storages))
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = StorageWeakRef(storage)

    def answer(self, what: str = "a value") -> float:
        """Returns the value that the user has given for this line of the script."""
        place = self._place(sys._getframe(1))
        for where, value in self._answers:
            if not where or place == where or place.endswith(f"/{where}"):
                return value
        name = place.rpartition("/")[2]
        raise ValueError(
            f"with --fake, {what} is read of a tensor that has none: answer it with --answer {name}=VALUE, or with --answer VALUE for all lines"
        )

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(hasattr(it, "__tensor_flatten__") for it in types):
            # Its class calls others on local tensors.
            return NotImplemented
        leaves = pytree.tree_leaves((args, kwargs))
        if _is_traced(leaves):
            return operator(*args, **kwargs)
        absent = [it for it in leaves if isinstance(it, torch.Tensor) and self.has(it)]
        if isinstance(operator, HigherOrderOperator):
            return self._marked(operator(*args, **kwargs), bool(absent))
        schema, tags = operator._schema, operator.tags
        name = schema.name.rpartition("::")[2]
        if operator.namespace in NAMESPACES:
            if absent and name in IN_PLACE:
                new = pytree.tree_map(lambda it: self._new(it) if isinstance(it, torch.Tensor) else it, args[0])
                operator, args = getattr(getattr(torch.ops, operator.namespace), IN_PLACE[name]).default, (new, *args[1:])
            return operator(*args, **kwargs)
        is_view = any(it.alias_info is not None and not it.alias_info.is_write for it in schema.returns)
        if is_view or torch.Tag.inplace_view in tags or name in ("set_", "resize_"):
            for it in absent:
                self.mark(it)
            return operator(*args, **kwargs)
        is_shape_only = operator.namespace == "aten" and is_of_shape_only(name)
        has_tensors = any(isinstance(it, torch.Tensor) for it in leaves)
        if absent and not is_shape_only:
            if name in OVERWRITING and absent[0] is args[0] and len(absent) == 1 and not self._is_large(args[0]):
                if args[0].numel() * args[0].element_size() == args[0].untyped_storage().nbytes():
                    self._storages.pop(args[0].untyped_storage()._cdata, None)
                return operator(*args, **kwargs)
            return self._skip(operator, args, kwargs)
        if is_shape_only or not has_tensors:
            shapes = pytree.tree_leaves(self._on_meta(operator, args, kwargs))
            if any(isinstance(it, torch.Tensor) and self._is_large(it) for it in shapes):
                return self._skip(operator, args, kwargs)
        return self._marked(operator(*args, **kwargs), False)

    def _skip(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Returns results without values."""
        self._uses.look(operator, args, kwargs)
        schema = operator._schema
        if operator is torch.ops.aten._local_scalar_dense.default:
            value = self.answer()
            return value if _is_floating(args[0]) else bool(value) if args[0].dtype == torch.bool else int(value)
        if torch.Tag.data_dependent_output in operator.tags or any("Tensor" not in str(it.type) for it in schema.returns):
            return bool(self.answer(f"what {schema.name} returns"))
        if torch.Tag.dynamic_output_shape in operator.tags:
            raise ValueError(f"with --fake, {schema.name} needs the values of a tensor that has none: run this part with smaller tensors, without --fake")
        try:
            results = self._on_meta(operator, args, kwargs)
        except NotImplementedError:  # It does not run there. The memory that it reads exists.
            return self._marked(operator(*args, **kwargs), True)
        given = dict(zip((it.name for it in schema.arguments), args)) | kwargs
        written = {frozenset(it.alias_info.before_set): given.get(it.name) for it in schema.arguments if it.alias_info is not None and it.alias_info.is_write}
        for it in pytree.tree_leaves(list(written.values())):
            if isinstance(it, torch.Tensor):
                self.mark(it)
        several = len(schema.returns) > 1
        results = results if several else (results,)
        made = tuple(
            pytree.tree_map(self._new, result) if it.alias_info is None else written[frozenset(it.alias_info.before_set)]
            for it, result in zip(schema.returns, results)
        )
        return made if several else made[0] if made else None

    def _marked(self, results: Any, has_absent: bool) -> Any:
        """Takes the values of results: of large ones, and of all, if they come from tensors without values."""

        def marked(it: Any) -> Any:
            if not isinstance(it, torch.Tensor) or hasattr(it, "__tensor_flatten__"):
                return it
            if has_absent:
                self.mark(it)
            is_own = it.numel() * it.element_size() == it.untyped_storage().nbytes()
            return self._new(it) if self._is_large(it) and is_own and not has_absent else it

        return pytree.tree_map(marked, results)

    def _is_large(self, tensor: Any) -> bool:
        return _is_floating(tensor) and tensor.numel() * tensor.element_size() >= SMALLEST

    def _new(self, like: Any) -> Any:
        """A tensor of this shape and type without values."""
        if not isinstance(like, torch.Tensor):
            return like
        new = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        if not self._is_large(like):
            self.mark(new.zero_())
        return new

    def _on_meta(self, operator: Any, args: Any, kwargs: Any) -> Any:
        def on_meta(it: Any) -> Any:
            if isinstance(it, torch.device):
                return torch.device("meta")
            if not isinstance(it, torch.Tensor):
                return it
            key = (it.shape, it.stride(), it.dtype)
            if key not in self._metas:
                self._metas[key] = torch.empty_strided(it.shape, it.stride(), dtype=it.dtype, device="meta")
            return self._metas[key]

        args, kwargs = pytree.tree_map(on_meta, (args, kwargs))
        if any(it.name == "device" for it in operator._schema.arguments):
            kwargs["device"] = torch.device("meta")
            kwargs.pop("pin_memory", None)
        return operator(*args, **kwargs)


def _is_traced(leaves: Sequence[Any]) -> bool:
    """Whether an operator is called for shapes and types only."""
    is_fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    return is_fake or any(it.is_meta if isinstance(it, torch.Tensor) else isinstance(it, torch.device) and it.type == "meta" for it in leaves)


def _is_floating(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)
