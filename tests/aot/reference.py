"""A compiler that runs each region's FX graph as it is: what the front half is tested with."""

from collections.abc import Mapping

import torch

from lamina.aot.notes import Notes
from lamina.aot.region import Region
from lamina.capture.dynamo import compile_callable
from lamina.compile import compile_captured
from lamina.decomp.table import decompositions
from lamina.options import Options
from lamina.record import Record
from lamina.rewrite.verify import verify_fx


class Reference:
    """The stages after the joint graph: no rewrites, and regions that are kept and run as they are."""

    def __init__(self, numerics: str = "fast", table: Mapping | None = None, rereads: bool = False) -> None:
        self.regions: list[Region] = []
        self.record = Record()
        self.rereads = rereads
        self.options = Options().replace(numerics=numerics)
        self.table = dict(decompositions(numerics) if table is None else table)

    def __call__(self, gm, example_inputs):
        return compile_captured(gm, example_inputs, self, self.table, self.options, Notes(self.record, "graph")).run

    def rewrite_joint(self, gm):
        return gm

    def rewrite_half(self, gm, kind):
        return gm

    def compile_region(self, region: Region):
        verify_fx(region.gm, region.name)
        assert len(region.inputs) == len(region.example_inputs)
        self.regions.append(region)

        def run(args):
            values = list(args)
            args.clear()
            return torch.fx.Interpreter(region.gm).boxed_run(values)

        run._boxed_call = True
        return run

    def compile(self, target, **kwargs):
        return compile_callable(target, backend_callable=self, record=self.record, **kwargs)

    def graph(self, kind: str):
        (found,) = [r for r in self.regions if r.kind == kind]
        return found.gm.graph

    def partition(self):
        (found,) = [s.value for s in self.record.stages if s.name == "partition"]
        return found


def operations(graph) -> list[str]:
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]
