"""Where a model's name leads, and what a folder says of itself."""

import json
from pathlib import Path

import msgspec
import pytest

from noria.shared.config.config import ModelSettings
from noria.shared.errors import UserError
from noria.shared.model.model_folder import (
    cache_dir,
    cached_folder,
    read_model_facts,
    resolve_model_folder,
    served_names,
)

CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 100, "max_position_embeddings": 64, "eos_token_id": 2}


def folder_with(path: Path, config: object = CONFIG, generation: object = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def test_a_local_folder_is_the_model_itself(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "mine")
    settings = ModelSettings(name=str(folder))
    assert resolve_model_folder(settings) == folder
    assert served_names(settings) == ("mine",)


def test_an_alias_and_a_hub_id_lead_into_the_cache(tmp_path: Path) -> None:
    settings = ModelSettings(name="smollm2", cache_dir=str(tmp_path))
    folder_with(tmp_path / "smollm2")
    assert resolve_model_folder(settings) == tmp_path / "smollm2"
    assert served_names(settings) == ("smollm2",)
    hub = ModelSettings(name="org/model", cache_dir=str(tmp_path))
    assert cached_folder(hub) == tmp_path / "org--model"
    assert served_names(hub) == ("org/model",)


def test_names_that_were_configured_are_served_instead(tmp_path: Path) -> None:
    del tmp_path
    assert served_names(ModelSettings(served_names=("a", "b"))) == ("a", "b")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm2", "noria models pull smollm2"),
        ("org/model", "noria models pull org/model"),
        ("smolm2", "an alias (smollm2, gemma3-270m)"),
        ("/nowhere/at/all", "no model folder /nowhere/at/all"),
        ("./nowhere", "no model folder ./nowhere"),
        ("nowhere.gguf", "no GGUF file nowhere.gguf"),
    ],
)
def test_a_missing_model_gives_an_error_that_says_what_to_do(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_model_folder(ModelSettings(name=name, cache_dir=str(tmp_path)))
    assert words in str(caught.value)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json is missing"):
        resolve_model_folder(ModelSettings(name=str(tmp_path)))


def test_a_replaced_gguf_file_is_another_model(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"one")
    settings = ModelSettings(name=str(file), cache_dir=str(tmp_path))
    first = cached_folder(settings)
    assert cached_folder(settings) == first
    file.write_bytes(b"another")
    assert cached_folder(settings) != first
    assert served_names(settings) == ("m",)


def test_the_cache_folder_follows_the_option_then_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir(ModelSettings()) == tmp_path / "noria" / "models"
    assert cache_dir(ModelSettings(cache_dir="/models")) == Path("/models")


def test_facts_come_from_the_folder(tmp_path: Path) -> None:
    found = read_model_facts(folder_with(tmp_path), ModelSettings())
    assert (found.vocabulary, found.max_model_tokens, found.eos_ids) == (100, 64, (2,))
    assert found.architecture == "LlamaForCausalLM"


def test_the_generation_configuration_has_the_last_word_on_the_end(tmp_path: Path) -> None:
    folder_with(tmp_path, generation={"eos_token_id": [5, 6]})
    assert read_model_facts(tmp_path, ModelSettings()).eos_ids == (5, 6)


def test_an_end_of_sequence_that_the_model_cannot_produce_is_none(tmp_path: Path) -> None:
    folder_with(tmp_path, generation={"eos_token_id": [5, 100, -1]})
    assert read_model_facts(tmp_path, ModelSettings()).eos_ids == (5,)


@pytest.mark.parametrize("changes", [{"eos_token_id": "</s>"}, {"max_position_embeddings": "long"}])
def test_nonsense_in_a_configuration_is_an_error_that_names_the_file(tmp_path: Path, changes: dict[str, str]) -> None:
    folder_with(tmp_path, {**CONFIG, **changes})
    with pytest.raises(UserError, match=r"config\.json does not describe"):
        read_model_facts(tmp_path, ModelSettings())


def test_the_present_folder_is_served_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert served_names(ModelSettings(name=".")) == (tmp_path.name,)


def test_a_text_model_inside_a_larger_one_is_found(tmp_path: Path) -> None:
    folder_with(tmp_path, {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": CONFIG})
    assert read_model_facts(tmp_path, ModelSettings()).vocabulary == 100


def test_the_context_can_be_made_shorter_but_not_longer(tmp_path: Path) -> None:
    folder_with(tmp_path)
    assert read_model_facts(tmp_path, ModelSettings(max_model_tokens=32)).max_model_tokens == 32
    with pytest.raises(UserError, match="made for 64"):
        read_model_facts(tmp_path, ModelSettings(max_model_tokens=65))


@pytest.mark.parametrize("text", ["{", "[]", '{"vocab_size": "many"}', "{}"])
def test_a_broken_model_description_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        read_model_facts(tmp_path, ModelSettings())


def test_an_empty_name_is_refused_by_the_configuration() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": ""}, ModelSettings)
