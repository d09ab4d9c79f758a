"""Builds the programs in C: of payment channels, for test chains, and of inner calls, for the simulator.

Clang's BPF backend compiles it, and this script makes of the object the ELF file that Solana's loader reads.
The same compiler produces the same bytes everywhere. It must be the version named in `COMPILER`: Debian's
package `clang-14`.
"""

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    ROOT / "agentpay_server" / "chain" / "channels" / "channels.c",
    ROOT / "agentpay_lab" / "src" / "agentpay_lab" / "simulation" / "inner_call.c",
)
COMPILER = "clang version 14.0.6"
FLAGS = (
    *("-target", "bpf", "-mcpu=v2", "-Os", "-std=c11"),
    *("-fno-strict-aliasing", "-ffreestanding", "-fno-builtin"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-address-of-packed-member"),
)

_FILE = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQ")
_TAG = struct.Struct("<QQ")
_CALL_RELOCATION = 10  # R_BPF_64_32
_SHARED_OBJECT, _BPF = 3, 247
_PROGBITS, _STRTAB, _DYNAMIC, _REL, _DYNSYM = 1, 3, 6, 9, 11
_ALLOCATED, _EXECUTABLE = 2, 4


@dataclass
class Compiled:
    """The code of an object file: the address of the entry point, and each call of the runtime."""

    code: bytes
    entry: int
    calls: list[tuple[int, str]]


def compiler() -> str | None:
    """Return the path of the compiler whose output is in the tree, if this machine has it."""
    for name in ("clang-14", "clang"):
        path = shutil.which(name)
        if path is not None:
            version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
            if COMPILER in version.stdout:
                return path
    return None


def compiled(clang: str, source: Path) -> Compiled:
    """Compile a source."""
    command = [clang, *FLAGS, "-c", source.name, "-o", "-"]
    run = subprocess.run(command, cwd=source.parent, capture_output=True, check=False)
    if run.returncode != 0:
        raise SystemExit(run.stderr.decode())
    return parsed(run.stdout)


def parsed(data: bytes) -> Compiled:
    """Read an object file that has code only."""
    header = _FILE.unpack_from(data)
    sections = [_SECTION.unpack_from(data, header[6] + index * _SECTION.size) for index in range(header[12])]

    def content(section: tuple[int, ...]) -> bytes:
        return data[section[4] : section[4] + section[5]]

    def text(table: bytes, at: int) -> str:
        return table[at : table.index(b"\0", at)].decode()

    names = content(sections[header[13]])
    by_name = {text(names, section[0]): section for section in sections}
    loaded = [name for name, section in by_name.items() if section[2] & _ALLOCATED]
    if loaded != [".text"]:
        raise SystemExit(f"only code is supported, but the compiler made {loaded}")
    table = by_name[".symtab"]
    strings = content(sections[table[6]])
    symbols = [(text(strings, symbol[0]), symbol) for symbol in _SYMBOL.iter_unpack(content(table))]
    calls = []
    for offset, info in _RELOCATION.iter_unpack(content(by_name[".rel.text"])):
        name, symbol = symbols[info >> 32]
        if info & 0xFFFFFFFF != _CALL_RELOCATION or symbol[3] != 0:
            raise SystemExit(f"a reference to {name} is not a call of the runtime")
        calls.append((offset, name))
    (entry,) = (symbol[4] for name, symbol in symbols if name == "entrypoint")
    return Compiled(content(by_name[".text"]), entry, calls)


def linked(program: Compiled) -> bytes:
    """Return a shared object, in which the loader resolves the calls of the runtime."""
    names = list(dict.fromkeys(name for _, name in program.calls))
    strings, places = b"\0", {}
    for name in names:
        places[name] = len(strings)
        strings += name.encode() + b"\0"
    symbols = _SYMBOL.pack(0, 0, 0, 0, 0, 0) + b"".join(
        _SYMBOL.pack(places[name], 0x10, 0, 0, 0, 0) for name in names
    )
    start = _FILE.size + 3 * _SEGMENT.size
    code = start, program.code
    dynamic_at = start + len(program.code)
    symbols_at = dynamic_at + 7 * _TAG.size
    strings_at = symbols_at + len(symbols)
    relocations_at = -(-(strings_at + len(strings)) // 8) * 8
    relocations = b"".join(
        _RELOCATION.pack(start + offset, (names.index(name) + 1) << 32 | _CALL_RELOCATION)
        for offset, name in program.calls
    )
    tags = {17: relocations_at, 18: len(relocations), 19: _RELOCATION.size, 6: symbols_at, 5: strings_at}
    dynamic = b"".join(_TAG.pack(*tag) for tag in [*tags.items(), (10, len(strings)), (0, 0)])
    titles = b"\0.text\0.dynamic\0.dynsym\0.dynstr\0.rel.dyn\0.shstrtab\0"
    titles_at = relocations_at + len(relocations)
    table_at = -(-(titles_at + len(titles)) // 8) * 8

    def section(name: str, kind: int, flags: int, at: int, size: int, *rest: int) -> bytes:
        address = at if flags else 0
        return _SECTION.pack(titles.index(name.encode() + b"\0"), kind, flags, address, at, size, *rest)

    sections = (
        bytes(_SECTION.size),
        section(".text", _PROGBITS, _ALLOCATED | _EXECUTABLE, start, len(program.code), 0, 0, 8, 0),
        section(".dynamic", _DYNAMIC, _ALLOCATED, dynamic_at, len(dynamic), 4, 0, 8, _TAG.size),
        section(".dynsym", _DYNSYM, _ALLOCATED, symbols_at, len(symbols), 4, 1, 8, _SYMBOL.size),
        section(".dynstr", _STRTAB, _ALLOCATED, strings_at, len(strings), 0, 0, 1, 0),
        section(".rel.dyn", _REL, _ALLOCATED, relocations_at, len(relocations), 3, 0, 8, _RELOCATION.size),
        section(".shstrtab", _STRTAB, 0, titles_at, len(titles), 0, 0, 1, 0),
    )

    def segment(kind: int, flags: int, at: int, end: int) -> bytes:
        return _SEGMENT.pack(kind, flags, at, at, at, end - at, end - at, 8)

    segments = (
        segment(1, 5, start, dynamic_at),
        segment(1, 4, dynamic_at, titles_at),
        segment(2, 4, dynamic_at, symbols_at),
    )
    header = _FILE.pack(
        b"\x7fELF\x02\x01\x01" + bytes(9),
        *(_SHARED_OBJECT, _BPF, 1, start + program.entry, _FILE.size, table_at, 0),
        *(_FILE.size, _SEGMENT.size, len(segments), _SECTION.size, len(sections), len(sections) - 1),
    )
    parts = [(0, header + b"".join(segments)), code, (dynamic_at, dynamic), (symbols_at, symbols)]
    parts += [(strings_at, strings), (relocations_at, relocations), (titles_at, titles)]
    built = b""
    for at, part in [*parts, (table_at, b"".join(sections))]:
        built = built.ljust(at, b"\0") + part
    return built


def files() -> dict[Path, bytes]:
    """Return each program; none where the compiler is not installed."""
    clang = compiler()
    if clang is None:
        print(f"programs: left out, because {COMPILER} is not installed")
        return {}
    return {source.with_suffix(".so"): linked(compiled(clang, source)) for source in SOURCES}
