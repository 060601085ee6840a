"""The options of section `[model]`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from noria.shared.config.sections.flags import flags


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which model, under which names, in which precision."""

    name: Annotated[
        str, Meta(description="Alias, local folder, GGUF file or hub id.", extra=flags("--model"), min_length=1)
    ] = "smollm2"
    served_names: Annotated[
        tuple[str, ...],
        Meta(description="Names that requests may use; the first is canonical.", extra=flags("--served-model-name")),
    ] = ()
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(description="Precision; auto picks what this processor does well.", extra=flags("--dtype")),
    ] = "auto"
    max_model_tokens: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        Meta(
            description="Context length, prompt and output together; the model's own where absent.",
            extra=flags("--max-model-tokens", "--max-model-len"),
        ),
    ] = None
    cache_dir: Annotated[
        str,
        Meta(
            description="Folder of pulled models; ~/.cache/noria/models where empty.", extra=flags("--model-cache-dir")
        ),
    ] = ""
