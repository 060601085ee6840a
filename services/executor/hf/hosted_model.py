"""A causal decoder of transformers that our own does not know, over our paged attention and linear layers.

Imported only when such a model is loaded, because importing transformers takes seconds. What a model does is learned by
observing it (hosted_attention.py) and checked by a trial (cpu/hosted_trial.py): a model whose logits over the paged cache
differ from its plain forward pass is refused.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
import transformers
from safetensors import SafetensorError

from noria.services.executor.hf import hosted_attention
from noria.services.executor.hf.hosted_attention import (
    AttentionCall,
    AttentionLayerSpec,
    AttentionSpecRecorder,
    attending,
    observing,
)
from noria.services.executor.hf.hosted_linear import multiplies_itself, replace
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.linear_layers import LinearFactory
from noria.services.executor.model.operations import CpuOperations
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import Integers
from noria.shared.errors import UserError
from noria.shared.model.weight_files import check_loaded, first_line, other_files

_OBSERVED_TOKENS: Final = 8


class HostedModel:
    """A model of transformers as a `CausalLM`."""

    def __init__(
        self,
        network: Any,
        architecture: Architecture,
        layers: Sequence[AttentionLayerSpec],
        dtype: torch.dtype,
        linear_factory: LinearFactory,
        rows_max: int,
    ) -> None:
        self.architecture = architecture
        self.dtype = dtype
        self.linear_factory = linear_factory
        self.batch_invariant = linear_factory.batch_invariant and not multiplies_itself(network)
        kept = {each.data_ptr(): each.nbytes for each in (*network.parameters(), *network.buffers())}
        self.nbytes = linear_factory.nbytes + sum(kept.values())
        self.scratch_bytes = linear_factory.scratch_bytes(rows_max)
        self._network = network
        self._places = {each.module: (number, each.scale / architecture.scale) for number, each in enumerate(layers)}
        self._picks = "logits_to_keep" in inspect.signature(network.forward).parameters

    def logits(self, operations: CpuOperations, batch: Batch, rows: Integers | None) -> torch.Tensor | None:
        """Run a step: all its tokens as one sequence, at their own positions."""

        def attend(asked: AttentionCall) -> torch.Tensor:
            layer, stretch = self._places[id(asked.module)]
            queries = asked.queries if stretch == 1 else asked.queries * stretch
            placed = operations.place(layer, *(_by_token(each) for each in (queries, asked.keys, asked.values)))
            return operations.attention(layer, placed).view(1, len(batch.token_ids), -1, queries.shape[3])

        picked = torch.zeros(0, dtype=torch.int64) if rows is None else torch.from_numpy(rows)
        with attending(attend):
            logits: torch.Tensor = self._network(
                input_ids=torch.from_numpy(batch.token_ids)[None],
                position_ids=torch.from_numpy(batch.positions)[None],
                use_cache=False,
                **({"logits_to_keep": picked} if self._picks else {}),
            ).logits[0]
        if rows is None:
            return None
        return (logits if self._picks else logits.index_select(0, picked)).float()


class HostedOptions(msgspec.Struct, frozen=True):
    """How a hosted model is loaded: dtype, and the most query tokens and sampled rows of a step and tokens of a request."""

    folder: Path
    dtype: torch.dtype
    rows_max: int
    samples_max: int
    context: int


class OpenedNetwork(msgspec.Struct, frozen=True):
    """A network of transformers, with what was learned by observing it.

    unused: names of tensors in the folder that it does not read.
    """

    network: Any
    architecture: Architecture
    layers: tuple[AttentionLayerSpec, ...]
    checkpoint: Checkpoint
    unused: tuple[str, ...]

    def plain(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits [tokens, vocabulary] of transformers' own forward pass of one sequence; only before `hosted`."""
        with judged(), torch.inference_mode():
            logits: torch.Tensor = self.network(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        return logits.float()

    def hosted(self, wanted: HostedOptions, linear_factory: LinearFactory) -> HostedModel:
        """Replace its linear layers and attention by ours. Returns the model."""
        head = self.network.get_output_embeddings()
        replace(self.network, head, self.checkpoint, linear_factory, wanted.dtype, wanted.rows_max, wanted.samples_max)
        self.network.set_attn_implementation(hosted_attention.NAME)
        return HostedModel(self.network, self.architecture, self.layers, wanted.dtype, linear_factory, wanted.rows_max)


def open_network(wanted: HostedOptions) -> OpenedNetwork:
    """Load a model and learn what it is. Raises UserError saying why it cannot be served."""
    # First, because it says of a damaged file what is wrong with it, and takes no memory.
    checkpoint = Checkpoint(wanted.folder)
    network, unused = _load(wanted)
    takes = inspect.signature(network.forward).parameters
    if "position_ids" not in takes:
        raise UserError("its forward pass takes no positions")
    _fix_long_positions(network, wanted.context)
    observer = AttentionSpecRecorder(wanted.context)
    hosted_attention.register()
    with _quiet():
        network.set_attn_implementation(hosted_attention.OBSERVING)
    ids = torch.arange(min(_OBSERVED_TOKENS, wanted.context))[None]
    with judged(), observing(observer), torch.inference_mode():
        vocabulary = network(input_ids=ids, position_ids=ids, use_cache=False).logits.shape[2]
    config = network.config.get_text_config()
    architecture = _architecture(config, observer.layers, vocabulary)
    network.set_attn_implementation("eager")
    return OpenedNetwork(network, architecture, tuple(observer.layers), checkpoint, unused)


def _load(wanted: HostedOptions) -> tuple[Any, tuple[str, ...]]:
    """The network, whose every weight is the folder's, and names of what else the folder has. Raises UserError."""
    with _quiet():
        try:
            network, found = transformers.AutoModelForCausalLM.from_pretrained(
                str(wanted.folder),
                dtype=wanted.dtype,
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )
        except (ValueError, OSError, ImportError, KeyError, RuntimeError, SafetensorError) as error:
            raise UserError(f"transformers cannot load it: {first_line(error)}") from error
    check_loaded(f"the model folder {wanted.folder}", found)
    return network.eval(), tuple(sorted({*found["unexpected_keys"], *other_files(wanted.folder)}))


def _architecture(config: Any, layers: Sequence[AttentionLayerSpec], vocabulary: int) -> Architecture:
    """What was observed as the cache and attention need it; sizes that only estimates depend on come from the config."""
    count = getattr(config, "num_hidden_layers", len(layers))
    if not layers:
        raise UserError("it does not compute attention through transformers' attention interface")
    if len(layers) != count or len({each.module for each in layers}) != count:
        raise UserError(f"{len(layers)} calls of attention in {count} layers: it has layers of another kind")
    if len({(each.heads, each.kv_heads, each.head_dim, each.cap) for each in layers}) > 1:
        raise UserError("its layers differ in their heads")
    first, hidden = layers[0], config.hidden_size
    inner = next((size for name in ("intermediate_size", "ffn_dim", "n_inner") if (size := _size(config, name))), 0)
    return Architecture(
        family=config.model_type,
        vocabulary=vocabulary,
        hidden=hidden,
        intermediate=(inner or 4 * hidden) * (_size(config, "num_experts_per_tok") or 1),
        layers=count,
        heads=first.heads,
        kv_heads=first.kv_heads,
        head_dim=first.head_dim,
        epsilon=0.0,
        windows=tuple(each.window for each in layers),
        ropes=(),
        layer_ropes=(),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        head_norm=False,
        tied=False,
        scale=first.scale,
        score_cap=first.cap,
    )


def _size(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else 0


def _fix_long_positions(network: Any, context: int) -> None:
    """Have `longrope` always turn as for long sequences when such are served.

    transformers chooses by the longest sequence of a batch, which would make a result depend on its mates and leave keys
    in the cache that were turned otherwise.
    """
    for module in network.modules():
        kinds = getattr(module, "rope_type", None)
        for prefix, kind in {"": kinds}.items() if isinstance(kinds, str) else (kinds or {}).items():
            if kind != "longrope":
                continue
            parameters = module.config.rope_parameters
            parameters = parameters[prefix] if prefix else parameters
            limit = parameters["original_max_position_embeddings"]
            if context > limit:
                long, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind](
                    module.config, "cpu", seq_len=limit + 1, layer_type=prefix or None
                )
                setattr(module, f"{prefix}_original_inv_freq" if prefix else "original_inv_freq", long)


def _by_token(part: torch.Tensor) -> torch.Tensor:
    """[1, heads, T, d] to [T, heads * d]."""
    return part[0].transpose(0, 1).reshape(part.shape[2], -1).contiguous()


@contextmanager
def judged() -> Iterator[None]:
    """Raise UserError when the forward pass fails, which is another project's code with whatever a config asks of it."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise UserError(f"its forward pass fails: {type(error).__name__}: {error}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what transformers remarks on standard error out of our log."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)
        transformers.logging.enable_progress_bar()
