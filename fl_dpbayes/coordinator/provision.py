"""`fl-dpbayes provision`: the authority, the server's certificate, and the files of both ends."""

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fl_dpbayes.config import site_name
from fl_dpbayes.coordinator.certificates import SERVER_DAYS, write_certificates
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically
from fl_dpbayes.files.templates import templates
from fl_dpbayes.hospital.findings import say
from fl_dpbayes.hospital.keys import write_new


@dataclass(frozen=True)
class NewFile:
    """A file that a kit lacks.

    Attributes:
        content: Its bytes.
        mode: Its permissions, as of chmod.
    """

    content: bytes
    mode: int


def provision(folder: Path, sites: Sequence[str], host: str, port: int, console: Console) -> None:
    """Write `coordinator/` and `hospital/` below a folder, or what is missing of them.

    Where they are whole, new names of sites are added to register.sh; without one the server's
    certificate is renewed.

    Args:
        folder: The folder to make.
        sites: Names of the sites.
        host: The name or address by which hospitals reach the coordinator.
        port: Where the SuperLink listens on the coordinator's own machine.
        console: Where it is told.

    Raises:
        UserError: If a name is not one, the folder was made for another host or port, a key is not
            the one that belongs there, or a file cannot be written.
    """
    _check_names(sites, host)
    coordinator = folder / "coordinator"
    # It is made last.
    is_whole = (coordinator / "keys").is_dir()
    register = coordinator / "register.sh"
    new_sites = _new_sites(register, is_whole, sites, host, port)
    if new_sites:
        _add_sites(register, new_sites)
        say(console, f"added {new_sites} to {register}")
        if is_whole:
            return
    if (coordinator / "ca.crt").exists() and not (coordinator / "ca.key").exists():
        raise UserError(
            f"{coordinator / 'ca.key'} is not there: put it back while the server's certificate is "
            "renewed"
        )
    write_certificates(coordinator, host)
    if is_whole:
        say(
            console,
            f"renewed server.pem in {coordinator} for {SERVER_DAYS} days; all else stays",
            wrapped=True,
        )
        return
    _write_kits(folder, sites, host, port)
    say(
        console,
        f"made {coordinator} (keep ca.key off this machine) and {folder / 'hospital'} (send it to "
        "every hospital; it holds no secret)\n"
        f"each hospital sends NAME.pub: put it into {coordinator / 'keys'}, then run register.sh",
    )


def _check_names(sites: Sequence[str], host: str) -> None:
    are_names = all(name and site_name(name) == name for name in sites)
    if len(set(sites)) < len(sites) or not are_names:
        raise UserError(
            f"--sites is {','.join(sites)}: give names of A-Z, a-z, 0-9, '.', '_', '-', each once, "
            "as a,b,c"
        )
    if not re.fullmatch(r"[A-Za-z0-9.-]{1,253}", host):
        raise UserError(
            f"--host is {host}: give the name or address by which hospitals reach the coordinator"
        )


def _settings_line(register: Path) -> re.Match[str] | None:
    """Find the line of register.sh that says host, port and sites."""
    text = register.read_text(encoding="utf-8") if register.is_file() else ""
    return re.search(r'^host=(\S+) port=(\d+) sites="(.*)"$', text, re.M)


def _new_sites(register: Path, is_whole: bool, sites: Sequence[str], host: str, port: int) -> str:
    """Name the sites that register.sh lacks; refuse one that was made for another host or port."""
    settings = _settings_line(register)
    if settings is None:
        if is_whole:
            raise UserError(
                f"{register} says not what it was made for: give this host and port, or another "
                "folder"
            )
        return ""
    if (settings[1], settings[2]) != (host, str(port)):
        raise UserError(
            f"{register} says {settings[0]}: give this host and port, or another folder"
        )
    registered_sites = settings[3].split()
    return " ".join(site for site in sites if site not in registered_sites)


def _add_sites(register: Path, new_sites: str) -> None:
    settings = _settings_line(register)
    assert settings is not None
    text = settings.string
    end_of_sites = settings.end(3)
    write_atomically(register, f"{text[:end_of_sites]} {new_sites}{text[end_of_sites:]}")


def _write_kits(folder: Path, sites: Sequence[str], host: str, port: int) -> None:
    """Write the files of both ends that are not there; what an earlier call made stays."""
    from fl_dpbayes.hospital.node import own_bundle

    coordinator = folder / "coordinator"
    hospital = folder / "hospital"
    values = {
        "@HOST@": host,
        "@PORT@": str(port),
        "@SITES@": " ".join(sites),
        "@BUNDLE@": hashlib.sha256(own_bundle()).hexdigest(),
    }
    files = {
        coordinator / "server.secret": NewFile(secrets.token_bytes(32), 0o640),
        hospital / "ca.crt": NewFile((coordinator / "ca.crt").read_bytes(), 0o644),
    }
    for kit in (coordinator, hospital):
        for name, form in templates(kit.name).items():
            text = re.sub("|".join(values), lambda match: values[match[0]], form.lstrip("\n"))
            files[kit / name] = NewFile(text.encode(), 0o644)
    for path, file in files.items():
        if not path.exists():
            write_new(path, file.content, file.mode)
    # Made last: it says that the kit is whole.
    (coordinator / "keys").mkdir()
