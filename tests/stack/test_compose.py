"""The compose stack: its files are sound, and its very commands, run as local processes, are a stack that serves."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from e2e.harness import NORIA, free_port, wait_until
from fakes.tiny_model import build_tiny_model

from noria.cli.app import noria
from noria.proto.base import Service
from noria.shared.config.config import Config
from noria.shared.config.sources import load

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
GPU = yaml.safe_load((ROOT / "deploy" / "compose.gpu.yaml").read_text())
TCP = yaml.safe_load((ROOT / "deploy" / "compose.tcp.yaml").read_text())
SERVICES = [service for service in Service if service is not Service.SUPERVISOR]
Definition = Mapping[str, Any]


def variables(definition: Definition) -> dict[str, str]:
    """The environment of a container, with `${NAME:-default}` at its default."""
    return {
        name: value.partition(":-")[2].rstrip("}") if value.startswith("${") else value
        for name, value in definition["environment"].items()
    }


def effective(name: str, *, tcp: bool) -> Config:
    added = TCP["services"].get(name, {}).get("environment", {}) if tcp else {}
    return load(None, {}, {**variables(COMPOSE["services"][name]), **added})


def test_there_is_one_container_for_each_service_and_one_that_fetches_the_model() -> None:
    assert set(COMPOSE["services"]) == {"models", *(service.value for service in SERVICES)}
    for service in SERVICES:
        assert COMPOSE["services"][service.value]["command"] == ["noria", service.value]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_every_command_and_health_check_is_one_that_the_command_line_has(name: str) -> None:
    definition = COMPOSE["services"][name]
    commands = [definition["command"]]
    test = definition["healthcheck"].get("test")
    if test is not None and test[1] == "noria":
        commands.append(test[1:])
    for program, *words in commands:
        assert program == "noria"
        arguments = words
        command: click.Command = noria
        context = click.Context(noria, info_name="noria")
        while isinstance(command, click.Group):
            _, found, arguments = command.resolve_command(context, arguments)
            assert found is not None
            command = found
        command.make_context(command.name, arguments, resilient_parsing=False)


def test_a_dead_container_is_started_again_and_one_that_was_told_to_stop_is_not() -> None:
    assert {COMPOSE["services"][service.value]["restart"] for service in SERVICES} == {"on-failure"}


def test_containers_stop_from_the_doors_inwards_and_the_gateway_has_time_to_finish() -> None:
    def needs(name: str) -> set[str]:
        direct = set(COMPOSE["services"][name]["depends_on"])
        return direct.union(*map(needs, direct))

    order = ("gateway", "admission", "scheduler", "executor")
    for position, name in enumerate(order):
        assert set(order[position + 1 :]) <= needs(name)
        assert name == "executor" or "detokenizer" in needs(name)
    gateway = COMPOSE["services"]["gateway"]
    assert int(gateway["stop_grace_period"].rstrip("s")) >= effective("gateway", tcp=False).http.drain_timeout_s + 5


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("tcp", [False, True])
def test_every_containers_variables_are_options(service: Service, tcp: bool) -> None:
    config = effective(service.value, tcp=tcp)
    assert config.runtime.dir == "/run/noria"
    assert config.model.cache_dir == "/models"
    assert config.runtime.transport == ("tcp" if tcp else "ipc")
    if tcp:
        assert config.runtime.curve_dir == "/keys" and not config.runtime.insecure_tcp
        assert config.runtime.hosts == {each.value: each.value for each in SERVICES}


def test_only_the_gateway_opens_a_port_and_the_others_reach_no_network_beyond_the_stack() -> None:
    for service in SERVICES:
        definition = COMPOSE["services"][service.value]
        assert ("ports" in definition) == (service is Service.GATEWAY)
        assert ("outside" in definition["networks"]) == (service is Service.GATEWAY)
    assert COMPOSE["networks"]["inside"]["internal"] is True


def test_the_sockets_folder_is_private_to_the_one_user_of_all_containers() -> None:
    options = dict(part.split("=") for part in COMPOSE["volumes"]["runtime"]["driver_opts"]["o"].split(","))
    for service in SERVICES:
        definition = COMPOSE["services"][service.value]
        assert definition["user"] == f"{options['uid']}:{options['gid']}"
        assert "runtime:/run/noria" in definition["volumes"]
    assert options["mode"] == "0700"
    assert f"--uid {options['uid']}" in (ROOT / "deploy" / "Dockerfile").read_text()


def test_the_image_copies_every_folder_of_the_package() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    for folder in ("proto", "shared", "client", "services", "cli"):
        assert f"COPY {folder} ./{folder}\n" in dockerfile


def test_on_a_gpu_only_the_executor_is_another_image_and_all_agree_on_the_size_of_steps() -> None:
    configs = {}
    for service in SERVICES:
        added = {name: value for name, value in variables(GPU["services"][service.value]).items() if "CUDA" not in name}
        configs[service] = load(None, {}, {**variables(COMPOSE["services"][service.value]), **added})
        assert ("image" in GPU["services"][service.value]) == (service is Service.EXECUTOR)
    assert {each.scheduler for each in configs.values()} == {configs[Service.EXECUTOR].scheduler}
    assert {service for service, each in configs.items() if each.executor.device == "cuda"} == {Service.EXECUTOR}
    executor = GPU["services"]["executor"]
    devices = executor["deploy"]["resources"]["reservations"]["devices"]
    assert [each["capabilities"] for each in devices] == [["gpu"]]
    assert f"AS {executor['build']['target']}\n" in (ROOT / "deploy" / "Dockerfile").read_text()


def test_the_image_that_is_built_by_default_is_the_one_without_a_gpu() -> None:
    stages = [line for line in (ROOT / "deploy" / "Dockerfile").read_text().splitlines() if line.startswith("FROM ")]
    assert stages[-1] == "FROM server" and stages[-2] == "FROM server AS gpu"


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
@pytest.mark.parametrize(
    "files",
    [
        ("docker-compose.yml",),
        ("docker-compose.yml", "deploy/compose.tcp.yaml"),
        ("docker-compose.yml", "deploy/compose.gpu.yaml"),
        ("docker-compose.yml", "deploy/compose.tcp.yaml", "deploy/compose.gpu.yaml"),
    ],
)
def test_docker_compose_accepts_the_files(files: tuple[str, ...]) -> None:
    arguments = [part for file in files for part in ("-f", file)]
    command = ["docker-compose", *arguments, "config", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Containers:
    """The containers' commands as local processes: same command lines and variables, other folders and port."""

    def __init__(self, folder: Path, model: Path, *, tcp: bool) -> None:
        self.port = free_port()
        self.log = folder / "log"
        self.clean = {name: value for name, value in os.environ.items() if not name.startswith("NORIA_")}
        self.changed = {
            "NORIA_RUNTIME_DIR": str(folder / "run"),
            "NORIA_RUNTIME_STATE_DIR": str(folder / "state"),
            "NORIA_MODEL_NAME": str(model),
            "NORIA_MODEL_CACHE_DIR": str(folder),
            "NORIA_HTTP_ADDRESS": f"127.0.0.1:{self.port}",
        }
        if tcp:
            hosts = ",".join(f"{service.value}=127.0.0.1" for service in SERVICES)
            self.changed |= {"NORIA_RUNTIME_HOSTS": hosts, "NORIA_RUNTIME_BASE_PORT": str(20000 + self.port % 10000)}
            self.changed |= {"NORIA_RUNTIME_BIND_HOST": "127.0.0.1", "NORIA_RUNTIME_CURVE_DIR": str(folder / "keys")}
            program, *arguments, _ = TCP["services"]["keys"]["command"]
            assert program == "noria"
            subprocess.run([str(NORIA), *arguments, str(folder / "keys")], check=True, env=self.clean)
        self.tcp = tcp
        with self.log.open("wb") as log:
            self.processes = {
                service: subprocess.Popen(
                    [str(NORIA), *COMPOSE["services"][service.value]["command"][1:]],
                    env=self.environment(service),
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                )
                for service in SERVICES
            }

    def environment(self, service: Service) -> dict[str, str]:
        base = variables(COMPOSE["services"][service.value])
        added = TCP["services"][service.value]["environment"] if self.tcp else {}
        return {**self.clean, **base, **added, **self.changed}

    def healthy(self, service: Service) -> bool:
        _, program, *arguments = COMPOSE["services"][service.value]["healthcheck"]["test"]
        interpreter = {"noria": str(NORIA), "python": sys.executable}[program]
        arguments = [each.replace(":8000/", f":{self.port}/") for each in arguments]
        done = subprocess.run(
            [interpreter, *arguments], env=self.environment(service), capture_output=True, check=False
        )
        return done.returncode == 0

    def stop(self) -> dict[Service, int]:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        try:
            return {service: process.wait(60) for service, process in self.processes.items()}
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()


@contextlib.contextmanager
def containers(folder: Path, model: Path, *, tcp: bool) -> Iterator[Containers]:
    running = Containers(folder, model, tcp=tcp)
    try:
        yield running
    finally:
        running.stop()


@pytest.mark.parametrize("tcp", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["ipc", "tcp"])
def test_the_containers_commands_as_processes_serve_a_request_and_stop_orderly(
    tmp_path_factory: pytest.TempPathFactory, tcp: bool
) -> None:
    folder = tmp_path_factory.mktemp("c")
    model = build_tiny_model(folder / "tiny")
    with containers(folder, model, tcp=tcp) as running:
        wait_until(lambda: running.healthy(Service.GATEWAY), 60, f"ready; {running.log.read_text()[-3000:]}")
        for service in SERVICES:
            assert running.healthy(service), service
        done = subprocess.run(
            [str(NORIA), "generate", "hello", "--max-tokens", "5", "--json"],
            env=running.environment(Service.GATEWAY), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert '"output_tokens": 5' in done.stdout
        assert running.stop() == dict.fromkeys(SERVICES, 0), running.log.read_text()[-3000:]
