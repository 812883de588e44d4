"""The limits for files in requests, and the tokens that files are billed with."""

from __future__ import annotations

import base64
import json

import pytest
from virtual_service import VirtualService

from smartbatch.testing import emulator
from tests.emulator.raw_client import RawClient, request_bytes

MODELS = {"openai": "gpt-4o", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}
WAV = (
    b"RIFF0000WAVEfmt " + (16).to_bytes(4, "little") + bytes(8) + (1000).to_bytes(4, "little") + bytes(20_000)
)


def png(width: int, height: int, size: int = 40) -> bytes:
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4)
    return header + bytes(size - len(header))


def part(api: str, content: bytes, media_type: str = "image/png") -> dict:
    data = base64.b64encode(content).decode()
    match api, media_type:
        case "openai", "audio/wav":
            return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        case "openai", "application/pdf":
            file = {"filename": "a.pdf", "file_data": f"data:{media_type};base64,{data}"}
            return {"type": "file", "file": file}
        case "openai", _:
            return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}
        case "anthropic", _:
            source = {"type": "base64", "media_type": media_type, "data": data}
            return {"type": "image" if "image" in media_type else "document", "source": source}
    return {"inlineData": {"mimeType": media_type, "data": data}}


def body_of(api: str, parts: list[dict]) -> dict:
    if api == "gemini":
        return {"contents": [{"parts": [{"text": "a"}, *parts]}]}
    fields = {"model": MODELS[api], "messages": [{"role": "user", "content": parts}]}
    return fields | ({"max_tokens": 900} if api == "anthropic" else {})


def post(virtual: VirtualService, api: str, parts: list[dict]) -> dict:
    path = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}.get(
        api, f"/v1beta/models/{MODELS['gemini']}:generateContent"
    )
    headers = {
        "openai": {"authorization": "Bearer k"},
        "anthropic": {"x-api-key": "k", "anthropic-version": "2026-10-21"},
        "gemini": {"x-goog-api-key": "k"},
    }
    return virtual.client().post(path, headers=headers[api], json=body_of(api, parts)).json()


def refusal(virtual: VirtualService, api: str, parts: list[dict]) -> str:
    return post(virtual, api, parts).get("error", {}).get("message", "")


def test_images_and_documents_above_a_documented_limit_are_refused():
    virtual = VirtualService()
    small = part("anthropic", png(2000, 10))
    wide = part("anthropic", png(2001, 10))
    assert refusal(virtual, "anthropic", [wide] * 20) == ""
    assert refusal(virtual, "anthropic", [small] * 21) == ""
    found = refusal(virtual, "anthropic", [small] * 20 + [wide])
    assert found.startswith("messages.0.content.20.image.source: At least one of the image dimensions exceed")
    assert found.endswith("many-image requests: 2000 pixels")
    assert refusal(virtual, "anthropic", [part("anthropic", png(8001, 1))]).endswith("size: 8000 pixels")
    assert refusal(virtual, "anthropic", [small] * 601).endswith("the maximum of 600")
    large = part("anthropic", png(9, 9, 8 * 2**20))
    assert "image exceeds 10 MB maximum: 11184812 bytes > 10485760" in refusal(virtual, "anthropic", [large])
    assert "1500 are accepted" in refusal(virtual, "openai", [part("openai", png(1, 1))] * 1501)
    assert "3600 images" in refusal(virtual, "gemini", [part("gemini", png(1, 1))] * 3601)


@pytest.mark.full
def test_the_bytes_of_documents_and_of_whole_requests_are_limited():
    virtual = VirtualService(max_body=10**9)
    pdf = b"%PDF-1.7" + bytes(38_000_000)
    for api, text in (("openai", "at most 50000000"), ("gemini", "exceeds the limit: 50000000 bytes")):
        assert text in refusal(virtual, api, [part(api, pdf, "application/pdf")])
    third = part("anthropic", b"%PDF-1.7" + bytes(9_000_000), "application/pdf")
    assert refusal(virtual, "anthropic", [third] * 2) == ""
    assert refusal(virtual, "anthropic", [third] * 3) == "Request exceeds the maximum size"


@pytest.mark.parametrize(
    ("headers", "path", "status", "text"),
    [
        ("authorization: Bearer k\r\n", "/v1/chat/completions", 413, "larger than the maximum of 1000 bytes"),
        ("anthropic-version: 2026-10-21\r\n", "/v1/messages", 413, "request_too_large"),
        ("x-goog-api-key: k\r\n", "/v1beta/models/m:generateContent", 400, "exceeds the limit: 1000 bytes"),
    ],
)
def test_a_body_that_is_too_large_is_refused_in_the_form_of_the_api(headers, path, status, text):
    with emulator(max_body=1000) as emu, RawClient(emu.port) as raw:
        raw.send(request_bytes({"text": "x" * 1000}, path=path, key=None, headers=headers))
        found, _, body = raw.answer()
        assert found == status
        assert text in body.decode()


def test_a_line_of_a_batch_with_too_large_an_image_fails_alone():
    virtual = VirtualService()
    requests = [
        {"custom_id": name, "params": body_of("anthropic", [part("anthropic", png(side, side))])}
        for name, side in (("a", 10), ("b", 9000))
    ]
    headers = {"x-api-key": "k", "anthropic-version": "2026-10-21"}
    http = virtual.client()
    batch = http.post("/v1/messages/batches", headers=headers, json={"requests": requests}).json()
    lines = http.get(f"/v1/messages/batches/{batch['id']}/results", headers=headers).text.splitlines()
    results = {line["custom_id"]: line["result"] for line in map(json.loads, lines)}
    assert results["a"]["type"] == "succeeded"
    assert "8000 pixels" in results["b"]["error"]["error"]["message"]


def test_files_are_billed_by_the_published_rules_and_named_by_modality():
    virtual = VirtualService()
    image, pdf = png(1024, 1024), b"%PDF-1.7 /Type /Page /Type /Page"
    openai = post(virtual, "openai", [part("openai", image), part("openai", WAV, "audio/wav")])["usage"]
    assert openai["prompt_tokens"] == 1 + 765 + 201  # 85 + 4 tiles of 170; 20.04 seconds
    assert openai["prompt_tokens_details"]["audio_tokens"] == 201
    claude = [part("anthropic", image), part("anthropic", pdf, "application/pdf")]
    pages = 2 * (2250 + 1496)  # text and image of each page
    assert post(virtual, "anthropic", claude)["usage"]["input_tokens"] == 1 + 37 * 37 + pages
    gemini = [part("gemini", image), part("gemini", WAV, "audio/wav"), part("gemini", pdf, "application/pdf")]
    usage = post(virtual, "gemini", gemini)["usageMetadata"]
    counts = {each["modality"]: each["tokenCount"] for each in usage["promptTokensDetails"]}
    assert counts == {"TEXT": 1, "IMAGE": 1120, "AUDIO": 642, "DOCUMENT": 2 * 560}
    assert usage["promptTokenCount"] == sum(counts.values())
