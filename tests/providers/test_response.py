"""Heads and bodies of HTTP answers, including irregular ones."""

from __future__ import annotations

from http.client import HTTPException, IncompleteRead, RemoteDisconnected

import pytest

from smartbatch.providers.http.response import MAX_HEAD, IncomingResponse


class Wire:
    def __init__(self, sent: bytes, size: int = 1 << 20) -> None:
        self.sent, self.size = sent, size

    def recv(self, most: int) -> bytes:
        most = min(self.size, most)
        piece, self.sent = self.sent[:most], self.sent[most:]
        return piece

    def recv_into(self, room) -> int:
        piece = self.recv(len(room))
        room[: len(piece)] = piece
        return len(piece)


def read(sent: bytes, size: int = 1 << 20) -> tuple[IncomingResponse, bytes]:
    response = IncomingResponse(Wire(sent, size))
    return response, b"".join(iter(response.piece, b""))


def answer(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode("latin-1") + body


CHUNKED = answer("Transfer-Encoding: chunked", body=b"5;a=b\r\nhello\r\nA\r\n, world!!!\r\n0\r\nx: y\r\n\r\n")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (answer("Content-Length: 15", body=b"hello, world!!!"), b"hello, world!!!"),
        (CHUNKED, b"hello, world!!!"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", b"{}"),
        (b"HTTP/1.1 200 OK\nContent-Length: 5\n\n\r\n\r\n\n", b"\r\n\r\n\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\n\r\n{}", b"{}"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + CHUNKED,
            b"hello, world!!!",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_an_answer_is_the_same_however_it_is_cut_into_pieces(sent, body, size):
    response, found = read(sent, size)
    assert (found, response.reusable) == (body, True)


def test_a_body_of_known_length_is_read_into_one_buffer():
    body = bytes(range(256)) * 16_384
    response = IncomingResponse(Wire(answer(f"content-length: {len(body)}", body=body), 50_000))
    assert response.length == len(body)
    assert response.whole(len(body)) == body
    assert response.piece() == b""


def test_names_are_in_lower_case_and_values_without_blanks_around_them():
    response, _ = read(answer("X-Word: \t caf\xe9 au lait  ", "Set-Cookie: a", "set-cookie: b", "Empty:"))
    assert response.headers == {"x-word": "caf\xe9 au lait", "set-cookie": "b", "empty": ""}


def test_a_value_that_goes_on_in_the_next_line_is_joined():
    response, body = read(answer("x-long: one", "  two", "\tthree", "content-length: 2", body=b"{}"))
    assert (response.headers["x-long"], body, response.reusable) == ("one two three", b"{}", True)


@pytest.mark.parametrize(
    "line", ["no colon", "content-length : 9", ": no name", "x: a\0b", "x: a\rcontent-length: 9"]
)
def test_a_line_that_is_no_header_is_left_out_and_ends_the_connection(line):
    response, body = read(answer(line, "content-length: 2", body=b"{}"))
    assert (body, response.reusable) == (b"{}", False)
    assert response.headers == {"content-length": "2"}


@pytest.mark.parametrize(
    ("sent", "reusable"),
    [
        (answer("content-length: 2", body=b"{}"), True),
        (answer("content-length: 2", "content-length: 2", body=b"{}"), True),
        (answer("content-length: 2", "connection: Close", body=b"{}"), False),
        (answer("content-length: 2", body=b"{}HTTP/1.1 200 OK"), False),
        (answer("transfer-encoding: chunked", body=b"2\r\n{}\r\n0\r\n\r\nmore"), False),
        (answer("transfer-encoding: chunked", body=b"2\r\n{}\r\n0\r\n"), False),
        (answer("transfer-encoding: chunked", "content-length: 9", body=b"2\r\n{}\r\n0\r\n\r\n"), False),
        (answer("transfer-encoding: identity", "content-length: 2", body=b"{}"), False),
        (answer("transfer-encoding: chunked", "transfer-encoding: identity", body=b"{}"), False),
        (answer("content-length: none", body=b"{}"), False),
        (answer(body=b"{}"), False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: Keep-Alive\r\n\r\n{}", True),
    ],
)
def test_a_connection_is_kept_only_where_the_end_of_the_body_is_certain(sent, reusable):
    response, body = read(sent)
    assert (body, response.reusable) == (b"{}", reusable)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", RemoteDisconnected),
        (b"HTTP/1.1 200 OK\r\ncontent-", HTTPException),
        (b"HTTP/2 200 OK\r\n\r\n", HTTPException),
        (b"220 smtp.example ESMTP\r\n", HTTPException),
        (b"HTTP/1.1 099 Low\r\n\r\n", HTTPException),
        (answer("content-length: 2", "content-length: 3", body=b"{}"), HTTPException),
        (answer(*["x: y"] * 101), HTTPException),
        (answer("x: " + "y" * MAX_HEAD), HTTPException),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, HTTPException),
        (answer("content-length: 9", body=b"{}"), IncompleteRead),
        (answer("transfer-encoding: chunked", body=b"9\r\n{}"), IncompleteRead),
        (answer("transfer-encoding: chunked", body=b"2\r\n{}"), IncompleteRead),
        (answer("transfer-encoding: chunked", body=b"1\r\n{}\r\n0\r\n\r\n"), IncompleteRead),
        (answer("transfer-encoding: chunked", body=b"zz\r\n{}\r\n0\r\n\r\n"), IncompleteRead),
        (answer("transfer-encoding: chunked", body=b"0\r\n" + b"x: y\r\n" * MAX_HEAD), HTTPException),
        (answer("transfer-encoding: chunked", body=b"0" * 10 * MAX_HEAD), HTTPException),
    ],
)
def test_what_is_cut_too_long_or_contradicts_itself_is_an_error(sent, error):
    with pytest.raises(error):
        read(sent, 4096)


class Kept(Wire):
    def recv(self, most: int) -> bytes:
        assert self.sent, "it was asked for more"
        return super().recv(most)


def test_another_protocol_is_known_by_its_first_bytes():
    with pytest.raises(HTTPException):
        IncomingResponse(Kept(b"SSH-2.0-OpenSSH_9\r\n"))


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (answer("transfer-encoding: Identity", "content-length: 2", body=b"{}"), b"{}"),
        (b"HTTP/1.1 204 No Content\r\ntransfer-encoding: identity\r\n\r\n", b""),
    ],
)
def test_the_encoding_identity_leaves_the_body_its_length(sent, body):
    response = IncomingResponse(Kept(sent))
    assert response.length == len(body)
    assert b"".join(iter(response.piece, b"")) == body
