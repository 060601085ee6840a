"""What may be used of the machine: a limit counts wherever it stands, in either form of cgroups."""

from pathlib import Path

import pytest

from noria.services.executor.runner import machine

GIB = 1 << 30


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 16 GiB without limits, and of 8 cores."""
    monkeypatch.setattr(machine, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_PROCESS", tmp_path / "process")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "meminfo").write_text(f"MemTotal: {20 * GIB >> 10} kB\nMemAvailable: {16 * GIB >> 10} kB\n")
    (tmp_path / "cgroup").mkdir()
    return tmp_path


def inside(tree: Path, cgroup: str, **files: object) -> None:
    """Files of a cgroup; in their names a dot is two underscores."""
    folder = tree / "cgroup" / cgroup
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_without_limits_all_of_the_machine_may_be_used(tree: Path) -> None:
    (tree / "process").write_text("0::/\n")
    assert (machine.free_memory(), machine.cores()) == (16 * GIB, 8)
    inside(tree, "", memory__max="max", memory__current=GIB, cpu__max="max 100000")
    inside(tree, "memory", memory__limit_in_bytes=(1 << 63) - 4096, memory__usage_in_bytes=GIB)
    inside(tree, "cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert (machine.free_memory(), machine.cores()) == (16 * GIB, 8)


def test_a_containers_limit_counts_less_what_is_used_and_cannot_be_dropped(tree: Path) -> None:
    (tree / "process").write_text("0::/\n")
    stat = f"anon {GIB}\ninactive_file {GIB // 4}\nactive_file {GIB // 2}"
    inside(tree, "", memory__max=4 * GIB, memory__current=2 * GIB, memory__stat=stat, cpu__max="250000 100000")
    assert (machine.free_memory(), machine.cores()) == (2 * GIB + GIB // 4, 2)


def test_so_it_does_in_the_older_form_whatever_the_process_is_said_to_be_in(tree: Path) -> None:
    # Without a name space of its own the path is the machine's, and not to be found in the container.
    (tree / "process").write_text("5:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n")
    inside(tree, "memory", memory__limit_in_bytes=3 * GIB, memory__usage_in_bytes=GIB,
           memory__stat=f"inactive_file 7\ntotal_inactive_file {GIB // 2}")  # fmt: skip
    inside(tree, "cpu", cpu__cfs_quota_us=50000, cpu__cfs_period_us=100000)
    assert (machine.free_memory(), machine.cores()) == (2 * GIB + GIB // 2, 1)


@pytest.mark.parametrize("limited", ["system.slice", "system.slice/noria.service"])
def test_the_limit_of_a_service_or_of_its_slice_counts(tree: Path, limited: str) -> None:
    (tree / "process").write_text("0::/system.slice/noria.service\n")
    for cgroup in ("system.slice", "system.slice/noria.service", "system.slice/other.service"):
        bound = cgroup == limited
        inside(tree, cgroup, memory__max=2 * GIB if bound else "max", memory__current=GIB, memory__stat="anon 1",
               cpu__max="300000 100000" if bound else "max 100000")  # fmt: skip
    inside(tree, "system.slice/other.service", memory__max=GIB // 8, memory__current=0, cpu__max="100000 100000")
    assert (machine.free_memory(), machine.cores()) == (GIB, 3)


def test_in_the_older_form_each_controller_has_its_own_path(tree: Path) -> None:
    (tree / "process").write_text("9:name=systemd:/x\n4:memory:/jobs/one\n1:cpu,cpuacct:/jobs/two\n")
    inside(tree, "memory/jobs/one", memory__limit_in_bytes=GIB, memory__usage_in_bytes=0)
    inside(tree, "memory/jobs/two", memory__limit_in_bytes=1, memory__usage_in_bytes=0)
    inside(tree, "cpu/jobs/two", cpu__cfs_quota_us=400000, cpu__cfs_period_us=100000)
    inside(tree, "cpu/jobs/one", cpu__cfs_quota_us=100000, cpu__cfs_period_us=100000)
    assert (machine.free_memory(), machine.cores()) == (GIB, 4)


def test_more_used_than_allowed_is_nothing_free_and_a_path_out_of_the_tree_is_left_alone(tree: Path) -> None:
    inside(tree, "..", memory__max=GIB, memory__current=0)
    (tree / "process").write_text("0::/../other\n")
    assert machine.free_memory() == 16 * GIB
    inside(tree, "", memory__max=GIB, memory__current=2 * GIB)
    assert machine.free_memory() == 0
