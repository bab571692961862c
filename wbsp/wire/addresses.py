"""Addresses as users write them, and as ZeroMQ expects them."""

from __future__ import annotations

import ipaddress

from wbsp.process.host import HOST, Network


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach this host name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def endpoint(host: str, port: int) -> str:
    """Return ZeroMQ's `tcp://` address; the brackets of an IPv6 host are optional."""
    if host == "localhost":
        host = "127.0.0.1"
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"tcp://{host}:{port}"


def plain_address(text: str) -> str:
    """Return a numeric address in its usual form, and other text unchanged.

    A socket of both IP versions may name an IPv4 address as IPv6 does: `::ffff:10.0.0.1`.
    """
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def endpoints(host: str, port: int, network: Network = HOST.network) -> list[str]:
    """Return all addresses of a host name.

    libzmq itself tries only the first one, which is the IPv6 address if there are both kinds.
    Raises OSError for an unknown name.
    """
    if host == "localhost":
        return [endpoint(host, port)]
    return list(dict.fromkeys(endpoint(str(where[0]), port)
                              for *_, where in network.resolve(host, port)))


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of 'host:port'. Raises ValueError in one clear line."""
    host, colon, port = address.rpartition(":")
    number = port.isascii() and port.isdigit()
    if not (colon and host and "/" not in host and number and 0 < int(port) < 65536):
        raise ValueError(f"address {address!r} is not host:port, for example localhost:2606")
    return host, int(port)


def split_addresses(text: str) -> list[tuple[str, int]]:
    """Return hosts and ports of 'host:port,host:port'. Raises ValueError in one clear line."""
    return [split_address(address.strip()) for address in text.split(",")]
