"""A local cluster is reached from its own machine only."""

from __future__ import annotations

import ipaddress

import psutil

from cluster import local_workers


def listeners() -> set[str]:
    """Addresses at which this process and its children wait for connections."""
    this = psutil.Process()
    return {
        connection.laddr.ip
        for process in (this, *this.children(recursive=True))
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_nothing_listens_to_other_machines() -> None:
    with local_workers(1):
        found = listeners()
    assert found
    assert all(ipaddress.ip_address(address).is_loopback for address in found), found
