"""The names of routes in the gateway's own metrics."""

from noria.services.gateway.monitoring.metrics import RouteNames


def test_paths_are_named_by_their_routes_so_that_there_are_few_names() -> None:
    names = RouteNames(
        [
            "/metrics",
            "/metrics/{service}",
            "/v1/models",
            "/v1/models/{name:path}",
            "/console/{file}",
            "/console/requests/{name}",
        ]
    )
    assert names.of("/metrics") == "/metrics"
    assert names.of("/metrics/executor") == "/metrics/{service}"
    assert names.of("/v1/models/a/b") == "/v1/models/{name:path}"
    assert names.of("/console/requests/7") == "/console/requests/{name}"
    assert names.of("/wp-admin/x.php") == "other"
