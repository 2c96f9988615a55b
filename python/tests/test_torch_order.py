"""The order in which the importer writes operators, and where it converts parts of tensors."""

from hir.torch._converted_parts import parts_converted
from hir.torch._graph import DType, Node, Ref, TensorType
from hir.torch._order import together

MATRIX = TensorType((4, 8), "bfloat16")


def node(name, target, *args, result=MATRIX, **kwargs):
    if target in ("placeholder", "output"):
        return Node(name, target, name, args, result=result)
    refs = tuple(Ref(it) if isinstance(it, str) else it for it in args)
    return Node(name, "call_function", target, refs, kwargs, result)


def mm(name, *args):
    return node(name, "aten.mm.default", *args)


def names(nodes):
    return " ".join(it.name for it in nodes)


INPUTS = tuple(node(it, "placeholder") for it in ("x", "g", "u", "w"))


def test_an_operator_comes_before_what_needs_it():
    nodes = (
        *INPUTS,
        mm("gate", "x", "g"),
        node("silu", "aten.silu.default", "gate"),
        mm("up", "x", "u"),
        node("mul", "aten.mul.Tensor", "silu", "up"),
        mm("down", "mul", "w"),
        node("output", "output", (Ref("down"),)),
    )
    assert names(together(nodes)) == "x g u w gate up silu mul down output"


def test_operators_that_read_the_same_tensors_are_together():
    nodes = (
        *INPUTS,
        mm("grad", "x", "w"),
        node("a", "aten.mul.Tensor", "grad", "g"),
        mm("left", "a", "w"),
        node("b", "aten.mul.Tensor", "grad", "u"),
        node("c", "aten.sigmoid.default", "b"),
        mm("right", "c", "w"),
        # The sum of products is computed by the second one.
        node("sum", "aten.add.Tensor", "left", "right"),
        mm("other", "x", "u"),
        # Nothing here needs it: it stays behind.
        node("late", "aten.mul.Tensor", "grad", "other"),
        node("output", "output", (Ref("sum"), Ref("late"))),
    )
    assert names(together(nodes)) == "x g u w grad a b c left right sum other late output"


def test_rows_are_reduced_where_the_result_is_needed():
    rows = TensorType((4, 1), "bfloat16")
    nodes = (
        *INPUTS,
        node("square", "aten.mul.Tensor", "x", "x"),
        node("sum", "aten.sum.dim_IntList", "square", (1,), True, result=rows),
        mm("first", "g", "w"),
        node("scaled", "aten.mul.Tensor", "x", "sum"),
        mm("second", "scaled", "w"),
        node("output", "output", (Ref("first"), Ref("second"))),
    )
    assert names(together(nodes)) == "x g u w first square sum scaled second output"


def test_a_graph_that_writes_keeps_its_order():
    nodes = (
        *INPUTS,
        node("silu", "aten.silu.default", "x"),
        mm("up", "x", "u"),
        node("copy", "aten.copy_.default", "x", "up"),
        node("output", "output", (Ref("silu"),)),
    )
    assert together(nodes) == nodes


def converted(name, source, shape, dtype):
    return node(name, "aten._to_copy.default", source, result=TensorType(shape, dtype), dtype=DType(dtype))


def test_parts_are_converted():
    whole, half = (4, 8), (4, 4)
    items = tuple(TensorType(half, "float32") for _ in range(2))
    nodes = (
        INPUTS[0],
        converted("wide", "x", whole, "float32"),
        node("split", "aten.split.Tensor", "wide", 4, 1, result=items),
        node("left", "_operator.getitem", "split", 0, result=items[0]),
        node("right", "aten.slice.Tensor", "wide", 1, 4, 8, result=items[1]),
        node("cat", "aten.cat.default", (Ref("right"), Ref("left")), 1, result=TensorType(whole, "float32")),
        converted("narrow", "cat", whole, "bfloat16"),
        node("output", "output", (Ref("narrow"),)),
    )
    found = parts_converted(nodes)
    assert names(found) == "x split left.part left right.part right narrow.0 narrow.1 narrow output"
    by_name = {it.name: it for it in found}
    narrow = TensorType(half, "bfloat16")
    assert by_name["split"].args[0] == Ref("x") and by_name["split"].result == (narrow, narrow)
    assert by_name["left"].result == items[0] and by_name["left.part"].result == narrow
    assert by_name["narrow"].target == "aten.cat.default" and by_name["narrow"].args == ((Ref("narrow.0"), Ref("narrow.1")), 1)
    assert by_name["narrow.0"].args == (Ref("right"),) and by_name["narrow.0"].result == narrow


def test_a_tensor_that_is_read_whole_is_converted_whole():
    wide = TensorType((4, 8), "float32")
    nodes = (
        INPUTS[0],
        converted("wide", "x", (4, 8), "float32"),
        node("part", "aten.slice.Tensor", "wide", 1, 0, 4, result=TensorType((4, 4), "float32")),
        node("cat", "aten.cat.default", (Ref("wide"), Ref("wide")), 1, result=TensorType((4, 16), "float32")),
        converted("narrow", "cat", (4, 16), "bfloat16"),
        node("output", "output", (Ref("cat"), Ref("narrow"), Ref("part")), result=wide),
    )
    assert parts_converted(nodes) == nodes
