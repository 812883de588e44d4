"""URLs in tables that are fetched: only from the internet, only from the named host, and once."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch import BatchingClient, InvalidRequest
from smartbatch.tables import fetched_files
from smartbatch.tables.cells import BadField
from smartbatch.tables.fetched_files import FetchedFiles, is_public
from smartbatch.tables.file_cells import FileColumns, MissingFile
from tests.providers.raw_server import Exchange, RawServer

CA = str(Path(__file__).parents[1] / "providers" / "localhost-ca.pem")
PNG = b"\x89PNG\r\n\x1a\nfetched"


@pytest.fixture
def serve(monkeypatch):
    """Start an https server that answers every request with the given bytes."""
    monkeypatch.setenv("SSL_CERT_FILE", CA)
    servers = []

    def start(*replies: bytes) -> RawServer:
        def script(reply: bytes) -> Any:
            def answer(exchange: Exchange) -> None:
                exchange.send(reply)
                exchange.close()

            return answer

        servers.append(RawServer(map(script, replies), tls=True))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def reply(content: bytes = PNG, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n{more}\r\n".encode() + content


@pytest.fixture
def columns(tmp_path):
    """Columns with fetched files, for which this machine counts as the internet."""
    fetched = FetchedFiles(tmp_path / "fetched", is_allowed=lambda address: True)
    return FileColumns({"photo": "image"}, tmp_path, fetched)


def test_a_file_is_fetched_once_and_sent_as_a_file(serve, columns):
    server = serve(reply())
    url = f"https://localhost:{server.port}/a b.png?key=ä&x=%20#part"
    for _ in range(2):
        (image,) = columns.read("photo", url)
        assert image.sha256 == hashlib.sha256(PNG).hexdigest()
    (request,) = server.requests
    assert request.target == "/a%20b.png?key=%C3%A4&x=%20"
    assert request.headers["host"] == f"localhost:{server.port}"
    assert [path.read_bytes() for path in columns.fetched.folder.iterdir()] == [PNG]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (reply(b"", "302 Found", "Location: https://localhost/b.png\r\n"), "redirects to another URL"),
        (reply(b"", "500 Internal Server Error"), "HTTP status 500"),
        (reply(PNG * 100), "larger than 0 MB"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + PNG * 100, "larger than 0 MB"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + PNG, "connection was lost"),
        (b"words", "cannot be fetched: "),
        (
            reply(b"<html>"),
            "'photo', the URL 'https://localhost:.*/a.png', is the file .* which is a document",
        ),
    ],
)
def test_what_is_not_the_file_is_an_error(serve, columns, monkeypatch, answer, problem):
    monkeypatch.setattr(fetched_files, "MAX_BYTES", 1000)
    server = serve(answer)
    with pytest.raises(BadField, match=problem):
        columns.read("photo", f"https://localhost:{server.port}/a.png")


def test_a_file_that_the_server_lacks_is_missing(serve, columns):
    server = serve(reply(b"", "404 Not Found"))
    with pytest.raises(
        MissingFile, match=f"'https://localhost:{server.port}/a.png' cannot be fetched: .* 404"
    ):
        columns.read("photo", f"https://localhost:{server.port}/a.png?token=secret")


def test_a_host_must_prove_its_name(serve, columns, monkeypatch):
    server = serve(reply())
    with pytest.raises(BadField, match=r"(?i)certificate"):
        columns.read("photo", f"https://127.1:{server.port}/a.png")
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(BadField, match=r"(?i)certificate"):
        columns.read("photo", f"https://localhost:{server.port}/a.png")
    assert server.requests == []


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "[::1]", "0x7f.1", "2130706433", "[::ffff:127.0.0.1]"]
)
def test_this_machine_is_never_reached(serve, tmp_path, host):
    server = serve(reply())
    rows = [{"photo": f"https://{host}:{server.port}/a.png"}]
    with (
        BatchingClient("sim:demo") as client,
        pytest.raises(InvalidRequest, match="not on the public internet"),
    ):
        client.generate(rows, template="{photo}", files={"photo": "image"}, fetch_to=tmp_path / "fetched")
    assert server.connections == 0


def test_the_checked_address_is_the_one_that_is_used(serve, tmp_path, monkeypatch):
    server, look_up = serve(reply()), socket.getaddrinfo
    hosts: list[str] = []

    def look_up_once(host: str, *args: Any, **more: Any) -> list[Any]:
        hosts.append(host)
        moved = host == "localhost" and hosts.count(host) > 1
        return look_up("127.0.0.2" if moved else "127.0.0.1", *args, **more)

    monkeypatch.setattr(fetched_files.socket, "getaddrinfo", look_up_once)
    fetched = FetchedFiles(tmp_path, is_allowed=lambda address: address == "127.0.0.1")
    assert Path(fetched.path_of(f"https://localhost:{server.port}/a.png")).read_bytes() == PNG
    assert hosts == ["localhost", "127.0.0.1"]


def test_one_address_of_another_network_is_enough_to_refuse_a_host(tmp_path, monkeypatch):
    both = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 443)) for each in ("93.184.216.34", "10.0.0.1")
    ]
    monkeypatch.setattr(fetched_files.socket, "getaddrinfo", lambda *_, **__: both)
    with pytest.raises(fetched_files.NotFetched, match="not on the public internet"):
        FetchedFiles(tmp_path).path_of("https://a.example/b.png")


def test_a_url_with_a_password_is_refused(columns):
    with pytest.raises(BadField, match="contains a user name or password"):
        columns.read("photo", "https://user:word@localhost/a.png")


PRIVATE = ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")


@given(network=st.sampled_from(PRIVATE), data=st.data())
def test_private_addresses_are_private_in_every_form(network, data):
    address = data.draw(st.ip_addresses(network=network))
    octets = str(address)
    halves = "{:02x}{:02x}:{:02x}{:02x}".format(*map(int, octets.split(".")))
    forms = [octets, f"::ffff:{octets}", f"64:ff9b::{octets}", f"2002:{halves}::1", f"64:ff9b:1::{octets}"]
    assert not any(map(is_public, forms))


@pytest.mark.parametrize(
    "address", ["fe80::1%eth0", "fd00::1", "::", "0.0.0.0", "224.0.0.1", "ff02::1", "255.255.255.255"]
)
def test_special_addresses_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_on_the_internet_are_public(address):
    assert is_public(address)
