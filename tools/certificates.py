"""Make a certificate authority and one certificate for a Dask cluster that speaks ``tls://``.

    pip install cryptography
    python tools/certificates.py FOLDER HOST [HOST ...]

Writes ``ca.pem``, ``cert.pem`` and ``key.pem``, the last readable by its owner alone, and
``tls.yaml``, which makes Dask use them: copy the folder to the machines of the cluster, and the
YAML to ``~/.config/dask/``. Whoever has key and certificate may take part and run code; give them
to nobody else. The authority's own key is not kept: for another machine make all anew.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 365
YAML = """distributed:
  comm:
    default-scheme: tls
    require-encryption: true
    tls:
      ca-file: {folder}/ca.pem
      scheduler: {{cert: {folder}/cert.pem, key: {folder}/key.pem}}
      worker: {{cert: {folder}/cert.pem, key: {folder}/key.pem}}
      client: {{cert: {folder}/cert.pem, key: {folder}/key.pem}}
  scheduler:
    dashboard:
      tls: {{cert: {folder}/cert.pem, key: {folder}/key.pem, ca-file: {folder}/ca.pem}}
"""


def name_of(text: str) -> x509.Name:
    """Return the name of a certificate's owner."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def alternative(host: str) -> x509.GeneralName:
    """Return a host's name, or its address, as a certificate has it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def begin(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    """Return a certificate for a year, still to be completed and signed."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name_of(subject))
        .issuer_name(name_of(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def write_certificates(folder: Path, hosts: list[str]) -> None:
    """Write the four files."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = (
        begin("daskxml authority", "daskxml authority", authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        begin("daskxml", "daskxml authority", key)
        .add_extension(x509.SubjectAlternativeName(map(alternative, hosts)), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").touch(mode=0o600)
    (folder / "key.pem").write_bytes(private)
    for name, made in (("ca.pem", authority), ("cert.pem", certificate)):
        (folder / name).write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.yaml").write_text(YAML.format(folder=folder))


def main() -> None:
    """Write the files that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the files are written")
    parser.add_argument("hosts", nargs="+", metavar="HOST", help="names and addresses of machines")
    options = parser.parse_args()
    write_certificates(options.folder, options.hosts)
    print(f"wrote ca.pem, cert.pem, key.pem and tls.yaml to {options.folder}")


if __name__ == "__main__":
    main()
