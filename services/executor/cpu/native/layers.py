"""Computes consecutive layers with dense MLPs by one native call.

Called one by one, the nine kernels of each layer cost a step of SmolLM2-135M 0.3 ms of Python, and each call waits for
the interpreter, which other threads may hold.
"""

import ctypes
import itertools
from collections.abc import Sequence

import torch

from noria.services.executor.cpu.native.buffers import Norms, ScratchTensors
from noria.services.executor.cpu.native.library import Kernels, LayerArguments, StepArguments
from noria.services.executor.cpu.native.linear import NativeLinear
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.mlp import DenseMlp
from noria.services.executor.model.operations import DecoderLayer


class NativeLayers:
    """The layers of a model over one step at a time. heads, caches, rotations: addresses of what each layer's attention takes.

    groups: by layer, of whose pages it reads and writes.
    """

    def __init__(
        self,
        kernels: Kernels,
        architecture: Architecture,
        dtype: torch.dtype,
        heads: int,
        caches: Sequence[int],
        groups: Sequence[int],
        rotations: Sequence[int],
        buffers: ScratchTensors,
        norms: Norms,
        threads: int,
    ) -> None:
        self._kernel = kernels.layers
        self._architecture, self._dtype, self._threads = architecture, dtype, threads
        self._heads, self._caches, self._groups, self._rotations = heads, caches, groups, rotations
        self._buffers, self._norms = buffers, norms
        self._made: list[_NativeLayer] = []
        self._runs: dict[int, _LayerRun] = {}

    def begin(
        self, rows: int, positions: int, slices: int, pages: Sequence[int], scratch: int, wanted: tuple[int, int] | None
    ) -> None:
        """Lay out a step: addresses of its positions, slices and each group's pages, and attention's scratch memory.

        wanted: address and number of the rows, ascending, whose results are asked for; None for all of them.
        """
        facts, of, dtype = self._architecture, self._buffers.of, self._dtype
        queries, inner = facts.heads * facts.head_dim, facts.intermediate
        self._rows, self._wanted = rows, wanted
        self.only_wanted = False
        self.residual = of("residual", rows, facts.hidden, torch.float32)
        self.added = of("product", rows, facts.hidden, torch.float32)
        self._pages = (ctypes.c_void_p * len(pages))(*pages)
        self._step = StepArguments(
            rows=rows,
            positions=positions,
            slices=slices,
            pages=ctypes.addressof(self._pages),
            residual=self.residual.data_ptr(),
            added=self.added.data_ptr(),
            products=of("product", rows, max(queries + 2 * facts.key_width, 2 * inner), torch.float32).data_ptr(),
            normed=of("normed", rows, facts.hidden, dtype).data_ptr(),
            queries=of("queries", rows, queries, dtype).data_ptr(),
            attended=of("attended", rows, queries, dtype).data_ptr(),
            gated=of("gated", rows, inner, dtype).data_ptr(),
            attention_scratch=scratch,
        )
        self._step_at = ctypes.addressof(self._step)

    def run(self, layers: Sequence[DecoderLayer], first: int, x: torch.Tensor, residual: torch.Tensor | None) -> int:
        """Compute as many layers from `first` on as can be done in one call, and return how many. See `composed`.

        Their results are then in `added` and `residual`; after the last of all layers those of the wanted rows, if not
        all are: `only_wanted`.
        """
        while len(self._made) < len(layers):
            self._made.append(self._make(len(self._made), layers[len(self._made)]))
        if first not in self._runs:
            self._runs[first] = _LayerRun(list(itertools.takewhile(lambda each: each.arguments, self._made[first:])))
        run = self._runs[first]
        if not run.count:
            return 0
        assert (x if residual is None else residual) is self.residual
        self._step.product_scratch = run.scratch(self._rows)
        self.only_wanted = self._wanted is not None and first + run.count == len(layers)
        self._step.wanted, self._step.wanted_rows = self._wanted if self._wanted and self.only_wanted else (None, 0)
        added = None if residual is None else x.data_ptr()
        self._kernel(run.at, run.count, self._step_at, added, self._threads)
        return run.count

    def _make(self, index: int, layer: DecoderLayer) -> "_NativeLayer":
        facts, mlp = self._architecture, layer.mlp
        if not isinstance(mlp, DenseMlp):
            return _NativeLayer(None, ())
        products = [each for each in (layer.qkv, layer.out, mlp.gate_up, mlp.down) if isinstance(each, NativeLinear)]
        if len(products) < 4:
            return _NativeLayer(None, ())
        assert (mlp.down.inputs, mlp.gate_up.outputs) == (facts.intermediate, 2 * facts.intermediate)
        assert all(each.dtype == self._dtype for each in products)
        query_norm, key_norm = layer.head_norms or (None, None)
        qkv, out, gate_up, down = (each.at for each in products)
        arguments = LayerArguments(
            input_norm=self._norm(layer.input_norm),
            query_norm=self._norm(query_norm),
            key_norm=self._norm(key_norm),
            after_attention=self._norm(layer.after_attention),
            mlp_norm=self._norm(layer.mlp_norm),
            after_mlp=self._norm(layer.after_mlp),
            qkv=qkv,
            out=out,
            gate_up=gate_up,
            down=down,
            heads=self._heads,
            cache=self._caches[index],
            rotations=self._rotations[facts.layer_ropes[index]],
            group=self._groups[index],
            gelu=facts.activation != "silu",
            epsilon=facts.epsilon,
        )
        return _NativeLayer(arguments, tuple(products))

    def _norm(self, weight: torch.Tensor | None) -> int | None:
        return None if weight is None else self._norms.address(weight)


class _NativeLayer:
    """One layer's arguments for the kernel, which keep its weights alive. arguments: None where the layer must be composed."""

    def __init__(self, arguments: LayerArguments | None, products: tuple[NativeLinear, ...]) -> None:
        self.arguments = arguments
        self.products = products


class _LayerRun:
    """Consecutive layers as the kernel takes them."""

    def __init__(self, made: list[_NativeLayer]) -> None:
        self.count = len(made)
        addresses = [ctypes.addressof(each.arguments) for each in made if each.arguments is not None]
        self._pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        self.at = ctypes.addressof(self._pointers)
        products = [product for each in made for product in each.products]
        self._largest = max(products, key=lambda each: each.row_bytes, default=None)

    def scratch(self, rows: int) -> int | None:
        """Address of what the layers' products work in, one after the other."""
        return None if self._largest is None else self._largest.scratch(rows)
