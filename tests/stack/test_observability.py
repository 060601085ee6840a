"""Dashboards, rules and the compose layer: they name only what there is, and a real Prometheus finds it all."""

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from e2e.harness import Stack, free_port, stack, wait_until
from e2e.test_console import OPERATOR, load
from fakes.scripts import script
from fakes.tiny_model import build_tiny_model

from noria.cli.commands.keys import hash_key
from noria.shared.telemetry.instruments import METRICS, MetricKind

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "observability"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
NAMES = re.compile(r"\b((?:noria|http_server)_[a-z0-9_]+)")
RULES = yaml.safe_load((FOLDER / "rules.yaml").read_text())
without_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="there is no Prometheus here; `apt install prometheus` brings one"
)


def exposed() -> set[str]:
    """Every series name that `/metrics` can tell of our own metrics."""
    names: set[str] = set()
    for metric in METRICS.values():
        parts = ("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",)
        names |= {metric.exposed + part for part in parts}
    return names


def generator() -> Any:
    return script("deploy/observability/generate_dashboards.py")


def panels() -> Iterator[tuple[str, str]]:
    """(dashboard and panel, expression) of every target, as Prometheus is asked."""
    for file in sorted((FOLDER / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "30s")
                yield f"{file.stem}: {panel['title']}", re.sub(r"\$(class|tenant)", ".*", expression)


def test_the_dashboards_are_current() -> None:
    made = generator()
    assert sorted(each.stem for each in (FOLDER / "dashboards").iterdir()) == sorted(made.DASHBOARDS)
    for name in made.DASHBOARDS:
        current = (FOLDER / "dashboards" / f"{name}.json").read_text() == made.text(name)
        assert current, "run `python deploy/observability/generate_dashboards.py`"


def test_every_metric_in_a_panel_or_rule_is_in_the_registry_and_every_metric_is_shown_somewhere() -> None:
    known = exposed()
    rules = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
    used: set[str] = set()
    for where, expression in [*panels(), *(("rules", each) for each in rules)]:
        names = set(NAMES.findall(expression))
        assert names <= known, where
        used |= names
    shown = {name for name in METRICS if any(each.startswith(METRICS[name].exposed) for each in used)}
    # Figures that are bills, that `noria usage` and the console tell, or that only matter together with others.
    left = {name for name in METRICS if name.startswith(("noria.used.", "noria.share.", "noria.cache.swapped"))}
    left |= {
        "http.server.active_requests",
        "noria.console.watchers",
        "noria.device.memory",
        "noria.text.tokens",
        "noria.steps",
    }
    unseen = set(METRICS) - shown - left
    assert not unseen, "put it on a panel in deploy/observability/generate_dashboards.py, and run that"


def test_every_alert_says_who_suffers_and_what_to_do() -> None:
    alerts = [rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule]
    assert len({each["alert"] for each in alerts}) == len(alerts)
    tested = (FOLDER / "rules_test.yaml").read_text()
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["annotations"]["summary"] and alert["annotations"]["description"]
        assert alert["alert"] in tested


def test_the_compose_layer_mounts_what_there_is_and_points_services_at_the_collector() -> None:
    layer = yaml.safe_load((ROOT / "deploy" / "compose.observability.yaml").read_text())
    base = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    networks = {*base["networks"], *layer["networks"]}
    for name, service in layer["services"].items():
        assert set(service.get("networks", ())) <= networks
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in layer["volumes"] or (ROOT / source).exists(), volume
        if name in base["services"]:
            assert service["environment"]["NORIA_TELEMETRY_OTLP_ENDPOINT"] == "http://collector:4318"
        else:
            assert re.search(r":v?\d+\.\d+", service["image"]), "of a fixed version"
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    assert set(collector["service"]["pipelines"]) == {"traces"}
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(collector[kind])


@without_prometheus
def test_promtool_accepts_configuration_and_rules_and_every_alert_fires_for_its_fault() -> None:
    assert PROMTOOL is not None
    for arguments in (
        ("check", "config", "prometheus.yaml"),
        ("check", "rules", "rules.yaml"),
        ("test", "rules", "rules_test.yaml"),
    ):
        done = subprocess.run([PROMTOOL, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("served")
    tenants = {"acme": "", "beta": "", "root": 'classes = ["admin", "standard"]'}
    file = folder / "noria.toml"
    file.write_text(
        "".join(f'[tenants.{name}]\nkeys = ["{hash_key(name)}"]\n{more}\n' for name, more in tenants.items())
    )
    small = ("--max-requests-per-batch", "16", "--num-blocks", "140", "--cpu-offload-space", "0.001")
    with stack(
        str(build_tiny_model(folder / "tiny")), "--config", str(file), *small,
        environment={"OMP_NUM_THREADS": "1"}, api_key="root",
    ) as running:  # fmt: skip
        yield running


@contextmanager
def scraping(running: Stack, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes a stack every second; its URL."""
    assert PROMETHEUS is not None
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / "rules.yaml")]
    (job,) = config["scrape_configs"]
    (folder / "noria.key").write_text("root")
    job["authorization"] = {"credentials_file": str(folder / "noria.key")}
    job["static_configs"] = [{"targets": [f"127.0.0.1:{running.port}"]}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    arguments = [
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([PROMETHEUS, *arguments], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def query(url: str, expression: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", timeout=10).json()
    assert answer["status"] == "success", (expression, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


@pytest.mark.slow
@without_prometheus
def test_a_real_prometheus_finds_data_for_every_panel_and_every_rule_and_nothing_alarming(
    served: Stack, tmp_path: Path
) -> None:
    with scraping(served, tmp_path) as url, load(served.endpoint, 40):
        refused = {"prompt": "x", "max_tokens": 5, "n": 1000}

        def ready() -> bool:
            # Something of everything that is counted: refusals, cancels, deadlines.
            body = {"prompt": "y", "max_tokens": 500, "ignore_eos": True}
            acme = {"authorization": "Bearer acme"}
            httpx.post(f"{served.url}/v1/completions", json=refused, headers=acme, timeout=60)
            httpx.post(f"{served.url}/v1/completions", json={**body, "ttl_ms": 400}, headers=acme, timeout=60)
            with contextlib.suppress(httpx.TimeoutException):
                httpx.post(f"{served.url}/v1/completions", json=body, headers=acme, timeout=0.2)
            time.sleep(0.3)
            try:
                return len(query(url, "count_over_time(noria_ledger_in_flight[60s]) > 35")) == 1
            except httpx.HTTPError:
                return False

        wait_until(ready, 90, "half a minute of scrapes")
        empty = [where for where, expression in panels() if not query(url, expression)]
        assert empty == []
        for group in RULES["groups"]:
            for rule in group["rules"]:
                if "record" in rule:
                    assert query(url, rule["record"]), rule["record"]
                # An alert's expression without its threshold has data: what it compares is there.
                compared = re.split(r"\s(?:>|==|!=)\s", rule["expr"])[0]
                assert query(url, compared), rule["expr"]
        law = "noria_ledger_accepted_total - on () sum(noria_ledger_ended_total) - on () noria_ledger_in_flight"
        values = query(url, f"max_over_time(({law})[60s:1s])") + query(url, f"min_over_time(({law})[60s:1s])")
        assert {each["value"][1] for each in values} == {"0"}
        for name in (
            "vllm:num_requests_running",
            "vllm:kv_cache_usage_perc",
            "vllm:time_to_first_token_seconds_bucket",
        ):
            assert query(url, name)
        targets = httpx.get(f"{url}/api/v1/targets", timeout=60).json()["data"]["activeTargets"]
        assert [each["lastError"] for each in targets] == [""]
        firing = {each["metric"]["alertname"] for each in query(url, 'ALERTS{alertstate="firing"}')}
        assert not firing & {"NoriaLedgerDoesNotAddUp", "NoriaNoProgress", "NoriaServiceNotReady", "NoriaUnreachable"}
    assert httpx.get(f"{served.url}/metrics", headers=OPERATOR, timeout=60).status_code == 200
