"""Throw-away certificates, made by `openssl` on the command line."""

import subprocess

CONFIG = """\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical,CA:TRUE
subjectKeyIdentifier = hash
[issued]
basicConstraints = critical,CA:FALSE
subjectAltName = DNS:localhost,IP:127.0.0.1
"""


class Authority:
    """Signs what servers and clients show, in files NAME.pem and NAME.key of a folder of its own."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        (folder / "openssl.cnf").write_text(CONFIG)
        self._make("authority")
        self.ca = folder / "authority.pem"

    def issue(self, name):
        """The paths of a certificate and its key."""
        return self._make(name, "-CA", self.ca, "-CAkey", self.folder / "authority.key")

    def _make(self, name, *signed_by):
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                   "-config", self.folder / "openssl.cnf", "-extensions", "issued" if signed_by else "authority",
                   "-subj", f"/CN={self.folder.name} {name}", "-keyout", key, "-out", certificate, *signed_by]
        made = subprocess.run(command, capture_output=True, text=True, timeout=30)
        if made.returncode != 0:
            raise RuntimeError(made.stderr)
        return certificate, key
