# SPDX-License-Identifier: Apache-2.0
# ways: none
"""scripts/setup names a package as the release of the distribution does. It chooses by what is
installed or can be installed, not by the name of the release."""
import fakes
from kvtest import *

top = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
tools = f"{TMP}/tools"
os.mkdir(tools)


def wanted(installed, available):
    """Returns the names of msgpack that setup asks for."""
    fakes.tool(tools, "dpkg-query", f"""case " {installed} " in
*" $4 "*) printf installed ;;
*) exit 1 ;;
esac""")
    fakes.tool(tools, "apt-cache", f"""case " {available} " in
*" $2 "*) printf '%s:\\n  Installed: (none)\\n  Candidate: 6.1.0-2\\n' "$2" ;;
*) printf '%s:\\n  Candidate: (none)\\n' "$2" ;;
esac""")
    said = run(f"{top}/scripts/setup", ok=False, env=dict(
        os.environ, PATH=f"{tools}:{os.environ['PATH']}", OFFLINE="1", FOR="build")).stdout
    assert "missing packages:" in said and " make " in said, said
    return [n for n in said.split() if "msgpack" in n]


assert wanted("", "libmsgpack-c-dev libmsgpack-dev") == ["libmsgpack-c-dev"]
assert wanted("", "libmsgpack-dev") == ["libmsgpack-dev"]
assert wanted("", "libmsgpack-c-dev") == ["libmsgpack-c-dev"]
# a package that is installed stays
assert wanted("libmsgpack-dev", "libmsgpack-c-dev libmsgpack-dev") == []
