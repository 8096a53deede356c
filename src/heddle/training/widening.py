"""Widening: in compiled steps a weight's gradient leaves its product in float32, the dtype that it is kept in.

As traced, the product rounds it to bfloat16, and another kernel reads it again to widen it. Sums are taken in float32
anyway, so this is both more exact and less to read and write.
"""

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

OPS = torch.ops
HALVES = (torch.bfloat16, torch.float16)


class Widening(CustomGraphPass):
    """Put one product in the place of a product in half precision and its cast to float32, where that is the answer."""

    def __call__(self, graph: fx.Graph) -> None:
        for cast in graph.find_nodes(op="call_function", target=OPS.prims.convert_element_type.default):
            answers = all(user.op == "output" for user in cast.users)  # not where another kernel would read it at once
            if answers and cast.args[1] is torch.float32 and (way := way_back(cast)):
                widen(graph, cast, way)

    def uuid(self) -> bytes:
        """Name it for the cache of compiled code."""
        return get_hash_for_files((__file__,))


def way_back(cast: fx.Node) -> list[fx.Node]:
    """Return the product that a cast widens, with the turns of its sides between them; nothing, if there is none."""
    way: list[fx.Node] = []
    node = cast.args[0]
    while isinstance(node, fx.Node) and len(node.users) == 1:
        way.insert(0, node)
        if node.target is OPS.aten.mm.default:
            value = node.meta["val"]
            return way if value.is_cuda and value.dtype in HALVES else []
        if node.target is not OPS.aten.permute.default:
            return []
        node = node.args[0]
    return []


def widen(graph: fx.Graph, cast: fx.Node, way: list[fx.Node]) -> None:
    """Let a product answer in float32, and all behind it too; the cast goes away."""
    product, *turns = way
    with graph.inserting_before(product):
        wide = graph.call_function(OPS.aten.mm.dtype, (*product.args, torch.float32))
    wide.meta = {**product.meta, "val": product.meta["val"].float()}
    product.replace_all_uses_with(wide)
    graph.erase_node(product)
    for turn in turns:
        turn.meta["val"] = turn.meta["val"].float()
    cast.replace_all_uses_with(turns[-1] if turns else wide)
    graph.erase_node(cast)


def widen_gradients() -> None:
    """Have everything that is compiled from now on widened so, unless somebody has put a pass of their own there."""
    config = torch._inductor.config
    if config.post_grad_custom_post_pass is None:
        config.post_grad_custom_post_pass = Widening()
