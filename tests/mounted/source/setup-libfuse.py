# SPDX-License-Identifier: Apache-2.0
# ways: none
"""If scripts/setup cannot fetch the source of libfuse, it installs the distribution's libfuse if
that is 3.17 or later, and otherwise says what it requires."""
import shutil
import fakes
from kvtest import *

top = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
tools = f"{TMP}/tools"
os.mkdir(tools)


def setup(candidate):
    """Runs setup in a new tree; returns its result and whether it installed libfuse3-dev."""
    tree = f"{TMP}/tree"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(f"{top}/scripts", f"{tree}/scripts")
    installed = f"{tree}/installed"
    fakes.tool(tools, "id", "echo 0")
    fakes.tool(tools, "dpkg-query", f'[ "$4" != libfuse3-dev ] || [ -e {installed} ] || exit 1\n'
                       "printf installed")
    fakes.tool(tools, "apt-cache", f"printf '%s:\\n  Candidate: {candidate}\\n' \"$2\"")
    fakes.tool(tools, "apt-get", f"""case " $* " in
*" install "*" libfuse3-dev "*) touch {installed} ;;
*" source "*) exit 1 ;;
esac""")
    fakes.tool(tools, "pkg-config", f"""case " $* " in
*" hiredis "*) exit 0 ;;
*3.19*) exit 1 ;;
*) [ -e {installed} ] && echo 3.18.2 ;;
esac""")
    p = run(f"{tree}/scripts/setup", env=dict(
        {k: v for k, v in os.environ.items() if k != "OFFLINE"},
        PATH=f"{tools}:{os.environ['PATH']}", FOR="build"))
    return p, os.path.exists(installed)


p, installed = setup("3.18.2-1")
assert p.returncode == 0 and installed, p.stdout
assert "using the system's libfuse 3.18.2, without io_uring" in p.stdout, p.stdout
for old in "3.14.0-5build1", "(none)":
    p, installed = setup(old)
    assert p.returncode == 1 and not installed, p.stdout
    assert "libfuse >= 3.17 is required" in p.stdout, p.stdout
