"""A self-signed server certificate for TLS tests."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def of_this_machine(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Return a server context for 127.0.0.1, and the certificate that its clients must trust."""
    if shutil.which("openssl") is None:
        if os.environ.get("CI"):
            pytest.fail("openssl is missing, which makes the certificate of this test")
        pytest.skip("openssl makes the certificate of this test")
    key, certificate = folder / "key.pem", folder / "ca.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=cerebro test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
