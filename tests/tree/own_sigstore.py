"""A Sigstore on this machine: GitHub's identities, a certificate authority and a transparency log,
with its own keys.

It replaces what GitHub and the public Sigstore alone can say. The clients are the real ones, and
hold its answers to its trust configuration as they hold the public one's to theirs. Identities are
checked and bound into certificates as Fulcio does it. The log is Rekor's first version, each entry
a log of its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import jwt
import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER = "https://token.actions.githubusercontent.com"
REQUEST_TOKEN = "request-token"
GITHUB = "https://github.com/"
_MEDIA = "application/vnd.dev.sigstore"
_FULCIO = "1.3.6.1.4.1.57264.1."
_CLAIMS = {8: "iss", 9: "job_workflow_ref", 12: "repository", 13: "sha", 14: "ref"}
"""Fulcio's extensions of a certificate, and the claim each is made from."""

Answer = tuple[int, dict[str, Any]]


class OwnSigstore:
    """The services' state."""

    def __init__(self, **claims: str) -> None:
        self.claims = claims
        """What GitHub says of the job."""
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(4)]
        self.issuer, self.log, self.certificates, self.root = keys
        self.authority = _authority(self.root)
        self.asked: list[str] = []
        self.spoil: Callable[[str, Answer], Answer] = lambda _path, answer: answer
        """Changes what is answered, given the path."""
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        """What GitHub gives a job that has `id-token: write`."""
        request = {"URL": f"{self.url}/identity?api-version=2.0", "TOKEN": REQUEST_TOKEN}
        return {f"ACTIONS_ID_TOKEN_REQUEST_{name}": value for name, value in request.items()}

    def trust_config(self) -> str:
        """Which services sign, and what they are trusted by."""
        since = {"start": "2020-01-01T00:00:00Z"}

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            kind = "PKIX_ECDSA_P256_SHA_256"
            public = {"rawBytes": _b64(_spki(key)), "keyDetails": kind, "validFor": since}
            log_id = {"keyId": _b64(_key_id(key))}
            said = {"baseUrl": self.url, "hashAlgorithm": "SHA2_256", "logId": log_id}
            return {**said, "publicKey": public}

        certificate = self.authority.public_bytes(serialization.Encoding.DER)
        authority = {
            "subject": {"organization": "test", "commonName": "test"},
            "uri": self.url,
            "certChain": {"certificates": [{"rawBytes": _b64(certificate)}]},
            "validFor": since,
        }
        service = {"url": self.url, "majorApiVersion": 1, "validFor": since, "operator": "test"}
        root = {
            "mediaType": f"{_MEDIA}.trustedroot+json;version=0.1",
            "tlogs": [log(self.log)],
            "certificateAuthorities": [authority],
            "ctlogs": [log(self.certificates)],
        }
        signing = {
            "mediaType": f"{_MEDIA}.signingconfig.v0.2+json",
            "caUrls": [service],
            "rekorTlogUrls": [service],
            "rekorTlogConfig": {"selector": "ANY"},
        }
        media = f"{_MEDIA}.clienttrustconfig.v0.1+json"
        return json.dumps({"mediaType": media, "trustedRoot": root, "signingConfig": signing})

    def read(self, identity: str, audience: str) -> dict[str, Any]:
        """The claims of an identity that GitHub gave for an audience."""
        key = self.issuer.public_key()
        return dict(jwt.decode(identity, key, algorithms=["ES256"], audience=audience))

    def answer(self, path: str, query: dict[str, str], bearer: str, body: bytes) -> Answer:
        """What one of the services answers."""
        if path == "/identity":
            if query.get("api-version") != "2.0" or bearer != REQUEST_TOKEN:
                return 401, {"message": "not what GitHub takes"}
            return 200, {"value": self._identity(query["audience"])}
        if path == "/api/v2/signingCert":
            try:
                claims = self.read(bearer, "sigstore")
            except jwt.InvalidTokenError as error:
                return 401, {"message": f"no identity: {error}"}
            request = base64.b64decode(json.loads(body)["certificateSigningRequest"])
            made = self._certificate(x509.load_pem_x509_csr(request), claims)
            certificates = [made, self.authority]
            chain = [one.public_bytes(serialization.Encoding.PEM).decode() for one in certificates]
            return 201, {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}
        if path == "/api/v1/log/entries":
            return 201, self._entry(json.loads(body))
        return 404, {"message": f"no route {path}"}

    def _identity(self, audience: str) -> str:
        now = int(time.time())
        said = {"iss": ISSUER, "aud": audience, "sub": "job"}
        times = {"iat": now, "nbf": now, "exp": now + 300}
        return jwt.encode({**said, **times, **self.claims}, self.issuer, "ES256")

    def _certificate(
        self, request: x509.CertificateSigningRequest, claims: dict[str, Any]
    ) -> x509.Certificate:
        assert request.is_signature_valid
        identity = x509.UniformResourceIdentifier(GITHUB + claims["job_workflow_ref"])
        public = request.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.root.public_key())
        builder = (
            _valid(public, x509.Name([]), self.authority.subject, timedelta(minutes=10))
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(purpose, critical=False)
            .add_extension(authority, critical=False)
            .add_extension(x509.SubjectAlternativeName([identity]), critical=True)
        )
        for number, claim in _CLAIMS.items():
            said = f"{GITHUB if number in (9, 12) else ''}{claims[claim]}"
            place = x509.ObjectIdentifier(f"{_FULCIO}{number}")
            extension = x509.UnrecognizedExtension(place, _der(0x0C, said.encode()))
            builder = builder.add_extension(extension, critical=False)
        # The timestamp signs the certificate without itself.
        draft = builder.sign(self.root, hashes.SHA256())
        stamp = self._timestamp(draft.tbs_certificate_bytes)
        listed = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2"), stamp)
        return builder.add_extension(listed, critical=False).sign(self.root, hashes.SHA256())

    def _timestamp(self, certificate: bytes) -> bytes:
        """That the log of certificates has seen one: RFC 6962, section 3.2."""
        milliseconds = int(time.time() * 1000).to_bytes(8, "big")
        issuer = hashlib.sha256(_spki(self.root)).digest()
        entry = issuer + len(certificate).to_bytes(3, "big") + certificate
        signature = _sign(self.certificates, b"\0\0" + milliseconds + b"\0\1" + entry + b"\0\0")
        stamp = b"\0" + _key_id(self.certificates) + milliseconds + b"\0\0"
        stamp += b"\4\3" + len(signature).to_bytes(2, "big") + signature
        one = len(stamp).to_bytes(2, "big") + stamp
        return _der(0x04, len(one).to_bytes(2, "big") + one)

    def _entry(self, proposed: dict[str, Any]) -> dict[str, Any]:
        if proposed["kind"] == "dsse":
            content = proposed["spec"]["proposedContent"]
            envelope = json.loads(content["envelope"])
            (verifier,) = content["verifiers"]
            signed = [one["sig"] for one in envelope["signatures"]]
            spec = {
                "envelopeHash": _digest(content["envelope"].encode()),
                "payloadHash": _digest(base64.b64decode(envelope["payload"])),
                "signatures": [{"signature": one, "verifier": verifier} for one in signed],
            }
            proposed = proposed | {"spec": spec}
        body = rfc8785.dumps(proposed)
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"log.test\n1\n{_b64(root)}\n"
        signed = _key_id(self.log)[:4] + _sign(self.log, note.encode())
        entry = {
            "body": _b64(body),
            "integratedTime": int(time.time()),
            "logID": _key_id(self.log).hex(),
            "logIndex": 0,
        }
        proof = {
            "logIndex": 0,
            "treeSize": 1,
            "rootHash": root.hex(),
            "hashes": [],
            "checkpoint": f"{note}\n— log.test {_b64(signed)}\n",
        }
        promise = _b64(_sign(self.log, rfc8785.dumps(entry)))
        said = {**entry, "verification": {"inclusionProof": proof, "signedEntryTimestamp": promise}}
        return {hashlib.sha256(body).hexdigest(): said}


def _valid(
    key: ec.EllipticCurvePublicKey, subject: x509.Name, issuer: x509.Name, span: timedelta
) -> x509.CertificateBuilder:
    """The begin of a certificate: whose it is, and that it is valid since and for this long."""
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    return builder.not_valid_before(now - span).not_valid_after(now + span)


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    return (
        _valid(key.public_key(), name, name, timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _usage(kind: str) -> x509.KeyUsage:
    kinds = "digital_signature content_commitment key_encipherment data_encipherment key_agreement "
    kinds += "key_cert_sign crl_sign encipher_only decipher_only"
    return x509.KeyUsage(**{name: name == kind for name in kinds.split()})


def _spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*form)


def _key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_spki(key)).digest()


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _digest(data: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}


def _der(tag: int, data: bytes) -> bytes:
    size, count = len(data), (len(data).bit_length() + 7) // 8
    length = bytes([size]) if size < 128 else bytes([0x80 + count]) + size.to_bytes(count, "big")
    return bytes([tag]) + length + data


class _Handler(BaseHTTPRequestHandler):
    services: OwnSigstore
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parsed = urllib.parse.urlsplit(self.path)
        bearer = self.headers.get("Authorization", "")[len("Bearer ") :]
        self.services.asked.append(parsed.path)
        query = dict(urllib.parse.parse_qsl(parsed.query))
        answer = self.services.answer(parsed.path, query, bearer, body)
        status, said = self.services.spoil(parsed.path, answer)
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _serve


@contextmanager
def serving_sigstore(services: OwnSigstore) -> Iterator[OwnSigstore]:
    """Serve it on a free port of this machine."""
    handler = type("Handler", (_Handler,), {"services": services})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    services.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield services
    finally:
        server.shutdown()
        server.server_close()
