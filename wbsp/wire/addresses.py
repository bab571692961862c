"""Addresses as people write them, and as ZeroMQ wants them."""

from __future__ import annotations

import ipaddress

from wbsp.process.host import HOST, Network


def is_loopback(host: str) -> bool:
    """True for a host name or address that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def endpoint(host: str, port: int) -> str:
    """ZeroMQ's `tcp://` address; an IPv6 host may have brackets or not."""
    if host == "localhost":
        host = "127.0.0.1"
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"tcp://{host}:{port}"


def plain_address(text: str) -> str:
    """A numeric address in its one usual form: libzmq, where a socket takes both kinds, may name an
    IPv4 address as IPv6 does, `::ffff:10.0.0.1`. What is no such address is returned as it is."""
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def endpoints(host: str, port: int, network: Network = HOST.network) -> list[str]:
    """The addresses that a host's name has: libzmq by itself tries the first one only, an IPv6
    address where there are both kinds. Raises OSError for a name that is not known."""
    if host == "localhost":
        return [endpoint(host, port)]
    return list(dict.fromkeys(endpoint(str(where[0]), port)
                              for *_, where in network.resolve(host, port)))


def split_address(address: str) -> tuple[str, int]:
    """Host and port of 'host:port'. Raises ValueError in one clear line."""
    host, colon, port = address.rpartition(":")
    number = port.isascii() and port.isdigit()
    if not (colon and host and "/" not in host and number and 0 < int(port) < 65536):
        raise ValueError(f"address {address!r} is not host:port, for example localhost:2606")
    return host, int(port)


def split_addresses(text: str) -> list[tuple[str, int]]:
    """Hosts and ports of 'host:port,host:port'. Raises ValueError in one clear line."""
    return [split_address(address.strip()) for address in text.split(",")]
