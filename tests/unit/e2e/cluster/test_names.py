"""Names and addresses: any two clusters must be able to live side by side."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.cluster.names import (
    MAX_NODES,
    SLOTS,
    SPACE,
    NameRefused,
    Names,
    block_of,
    cgroup_of,
    choose_slot,
    netns_pattern,
)

cluster_names = st.from_regex(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?", fullmatch=True)


def allocate(wanted: list[str]) -> list[Names]:
    """What the clusters get when they are booted one after the other."""
    made: list[Names] = []
    for name in wanted:
        made.append(Names(name, choose_slot(name, [other.slot for other in made], []), MAX_NODES))
    return made


def namespaces(names: Names) -> set[str]:
    return {names.netns, *(node.netns for node in names.nodes)}


@given(st.lists(cluster_names, min_size=2, max_size=12, unique=True))
def test_clusters_share_no_address_no_device_no_namespace_and_no_cgroup(wanted: list[str]) -> None:
    made = allocate(wanted)

    for index, one in enumerate(made):
        for other in made[index + 1 :]:
            assert not one.block.overlaps(other.block)
            assert one.host_device != other.host_device
            assert namespaces(one).isdisjoint(namespaces(other))
            assert one.cgroup != other.cgroup


@given(st.lists(cluster_names, min_size=2, max_size=6, unique=True))
def test_a_clusters_pattern_matches_its_own_namespaces_and_no_others(wanted: list[str]) -> None:
    made = allocate(wanted)

    for one in made:
        pattern = netns_pattern(one.cluster)
        assert all(pattern.fullmatch(name) for name in namespaces(one))
        others = set().union(*(namespaces(other) for other in made if other is not one))
        assert not any(pattern.fullmatch(name) for name in others)


def test_a_cluster_named_like_another_ones_node_is_another_cluster() -> None:
    one, other = allocate(["a", "a-n1"])

    assert "perdure-a-n1-n1" in namespaces(other)
    assert not netns_pattern("a").fullmatch("perdure-a-n1-n1")
    assert namespaces(one).isdisjoint(namespaces(other))


@given(cluster_names, st.integers(0, SLOTS - 1), st.integers(1, MAX_NODES))
def test_the_parts_of_a_block_do_not_overlap_and_lie_inside_it(name: str, slot: int, count: int) -> None:
    names = Names(name, slot, count)
    parts = [names.node_network, names.services, *(node.pods for node in names.nodes)]

    assert names.block.subnet_of(SPACE)
    assert all(part.subnet_of(names.block) for part in parts)
    assert not any(one.overlaps(other) for i, one in enumerate(parts) for other in parts[i + 1 :])
    assert all(node.pods.subnet_of(names.pods) for node in names.nodes)
    addresses = [names.control_plane, names.host, *(node.address for node in names.nodes)]
    assert len(set(addresses)) == len(addresses)
    assert all(address in names.node_network for address in addresses)


@given(cluster_names, st.integers(0, SLOTS - 1))
def test_device_names_fit_into_what_the_kernel_allows(name: str, slot: int) -> None:
    names = Names(name, slot, MAX_NODES)

    assert all(len(device) <= 15 for device in (names.host_device, *(node.port for node in names.nodes)))


def test_the_same_name_gets_the_same_addresses_again() -> None:
    assert choose_slot("perdure", [], []) == choose_slot("perdure", [], [])


def test_a_slot_that_the_hosts_routes_use_is_passed_over() -> None:
    favourite = choose_slot("perdure", [], [])
    inside = next(iter(block_of(favourite).subnets(new_prefix=30)))

    assert choose_slot("perdure", [], [inside]) == (favourite + 1) % SLOTS


def test_without_a_free_slot_the_message_says_so() -> None:
    with pytest.raises(NameRefused, match=r"cluster perdure: every address block in 100\.64\.0\.0/10 is taken"):
        choose_slot("perdure", [], [IPv4Network("100.64.0.0/10")])


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "a.b", "a b", "1a", "a" * 21, "ä", "a\n"])
def test_a_name_that_would_break_files_or_host_names_is_refused(name: str) -> None:
    with pytest.raises(NameRefused, match="use 1 to 20 of a-z"):
        Names(name, 0, 1)


@pytest.mark.parametrize("count", [0, -1, MAX_NODES + 1])
def test_a_number_of_nodes_that_has_no_addresses_is_refused(count: int) -> None:
    with pytest.raises(NameRefused, match="nodes asked for, 1 to 31 are possible"):
        Names("perdure", 0, count)


def test_what_cleanup_knows_from_the_name_alone_is_what_the_cluster_uses() -> None:
    assert Names("perdure", 7, 1).cgroup == cgroup_of("perdure")
